"""Who is compared: how each peer is started, what it is called, and what it hasn't got.

It doesn't show a peer worse than its users see it: each runs with the settings that it comes with, where it isn't said
otherwise.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.peers.answering import Place
from services.answering import AnsweringProcess
from services.pulsar.asked import JAVA_OPTIONS
from services.pulsar.broker import offload_settings
from services.pulsar.build import find_java, find_place

__all__ = ["KINDS", "Kind", "started"]

START_TIMEOUT_S = 180.0
_ROOT = Path(__file__).parents[2]
#: Of the Java virtual machine of Pulsar's offloader; the broker's own default is twice that.
_PULSAR_HEAP = ("-Xmx1g", "-XX:MaxDirectMemorySize=1g")


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table.

    Attributes:
        title: what it is called there.
        note: what a reader of the table has to know of it.
        command: what starts its process at a place.
        environment: beside this process's, by the place.
        lacks: column -> why it can't be filled, in a word or two.
        singles: how many single entries are read at most; 0: all that are asked for.
        beside: which row it is compared with in words.
    """

    title: str
    note: str
    command: Callable[[Place], list[str]]
    environment: Callable[[Place], Mapping[str, str]] = lambda _: {}
    lacks: Mapping[str, str] = field(default_factory=dict)
    singles: int = 0
    beside: str = "ours"


def _python(name: str) -> Callable[[Place], list[str]]:
    return lambda place: [sys.executable, "-m", "benchmarks.peers.answering", name, json.dumps(asdict(place))]


def _pulsar(place: Place) -> list[str]:
    built = find_place(build=True)
    settings = offload_settings(place.url, place.bucket)
    return [
        find_java(),
        *_PULSAR_HEAP,
        *JAVA_OPTIONS,
        "-cp",
        f"{built / 'lib'}/*",
        "OffloaderPeer",
        str(built / "offloaders"),
        f"{place.folder}/unpacked",
        place.entries_file,
        str(place.entry_bytes),
        *(f"{name}={value}" for name, value in settings.items()),
    ]


_NOT = "not offered"
#: Neither has entries nor a moment at which one is known to be in the tier.
_BYTES_ONLY = {"readable": _NOT}

KINDS: Mapping[str, Kind] = {
    "ours": Kind(
        "**offloader**",
        "the library with one open stream: blocks of 1 MiB, parts and GETs of 16 MiB, four in parallel",
        _python("ours"),
    ),
    "pulsar": Kind(
        "Pulsar's jcloud offloader",
        "version 4.0.8, its classes on a closed ledger in memory, without a broker: blocks of 64 MiB, read in "
        "sequential GETs of 1 MiB; a Java heap of 1 GiB",
        _pulsar,
        lambda place: {"ACCESS_KEY_ID": place.access_key, "ACCESS_KEY_SECRET": place.secret_key},
        singles=25,
    ),
    "boto3": Kind(
        "bare boto3",
        "bytes without entries; parts and GETs of the same sizes and in the same number as offloader, parts with "
        "CRC-32C; for a single entry it receives the location of the bytes",
        _python("boto3"),
        lacks=_BYTES_ONLY,
    ),
    "s3transfer": Kind(
        "boto3's s3transfer",
        "`upload_file` and `download_file` with their defaults: 8 MiB, ten in parallel; it transfers whole files",
        _python("s3transfer"),
        lacks={**_BYTES_ONLY, "single": _NOT},
    ),
    "obstore": Kind(
        "obstore",
        "Rust's object_store from Python: the limit of a client, in the same sizes as bare boto3, without checksums",
        _python("obstore"),
        lacks=_BYTES_ONLY,
    ),
    "spark-ours": Kind(
        "Spark over our source",
        "`local[2]`, all columns into the `noop` sink; a single entry is a query by its position",
        _python("spark-ours"),
        lacks={"offload": "not offered (reads only)", **_BYTES_ONLY},
        singles=12,
    ),
    "spark-parquet": Kind(
        "Spark over Parquet",
        "the same over uncompressed Parquet through S3A, written by Spark from a local Parquet file",
        _python("spark-parquet"),
        lacks=_BYTES_ONLY,
        singles=12,
        beside="spark-ours",
    ),
}


def started(kind: Kind, place: Place, log: Path) -> AnsweringProcess:
    """The peer's process, ready for questions.

    Raises:
        Unavailable: it can't be had here, or didn't start.
    """
    environment = {**os.environ, **kind.environment(place)}
    process = AnsweringProcess.start(kind.title.strip("*"), kind.command(place), _ROOT, environment, log)
    try:
        process.next_answer(START_TIMEOUT_S)
    except BaseException:
        process.close()
        raise
    return process
