"""What messages' values are, as somebody says who knows it.

Owns these values. Must never load Spark or a codec: the command line makes them before it knows whether it needs one.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AvroValues", "JsonValues", "Values"]


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Values are JSON objects with these fields, as Spark's DDL: ``id BIGINT, name STRING``.

    A field that a value doesn't have is null, one that the schema doesn't name is left out.
    """

    fields: str


@dataclass(frozen=True, slots=True)
class AvroValues:
    """Values are Avro records, without a header.

    Attributes:
        schema: of the columns, as JSON, or what Pulsar's admin interface answers.
        versions: schemas that values were written with, by Pulsar's number; none: all with ``schema``.
    """

    schema: str
    versions: tuple[tuple[int, str], ...] = ()


Values = JsonValues | AvroValues
