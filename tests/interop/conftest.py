"""The Spark of a test process, which there is one of whatever folder asks for it."""

from __future__ import annotations

from tests.spark.conftest import spark as spark
