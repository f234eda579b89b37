"""The Spark of a test process, for the documents' examples that use a session which is there."""

from __future__ import annotations

from tests.spark.conftest import spark as spark
