"""Pulsar's frames, settings files, names and keys: each is taken, or refused by name."""

from __future__ import annotations

import random
import re
import tempfile
from pathlib import Path

from formats.entries import Position
from formats.errors import FormatError
from formats.keys import decode_stream, encode_stream, parse_object_key, record_number, stream_of_catalog_key
from formats.pulsar.commands import Command, CommandType, FrameSplitter, encode_command, position_of
from formats.pulsar.entry import decode_frame
from offloader.errors import OffloaderError
from offloader.settings import Settings
from offloader.settings.layered import SettingsFile, read_settings_file
from tests.formats.pulsar_entries import recorded
from tests.proof.fuzz.fuzz_engine import Outcome, Target, attempt
from tests.proof.fuzz.fuzz_mutation import mutate_text

STREAM = "public/default/persistent/orders"
UUID_TEXT = "0f8fad5b-d9cb-469f-a165-70867728950e"
#: A frame that says it is longer is refused before it is received.
FRAME_BYTES_MAX = 16 * 1024


def frame_seeds() -> list[bytes]:
    """A connection's beginning, and messages of a real broker."""
    entries = [entry for topic in list(recorded("plain").values())[:4] for _, _, entry in topic.entries[:2]]
    place = {"ledger_id": 7, "entry_id": 3}
    hello = encode_command(CommandType.CONNECTED, server_version="4", protocol_version=19)
    found = [hello, encode_command(CommandType.PING), encode_command(CommandType.SUCCESS, request_id=3)]
    found += [encode_command(CommandType.MESSAGE, entry, consumer_id=1, message_id=place) for entry in entries]
    return [*found, b"".join(found[:4])]


def check_frames(data: bytes) -> Outcome:
    """The same commands come out whatever the pieces are that arrive, and no more waits than a frame and a piece."""
    whole, place = attempt(lambda: list(FrameSplitter(FRAME_BYTES_MAX).feed(data)), FormatError)
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    splitter = FrameSplitter(FRAME_BYTES_MAX)

    def feed_pieces() -> list[Command]:
        found: list[Command] = []
        for piece in pieces:
            found += list(splitter.feed(piece))
            assert len(splitter._received) <= FRAME_BYTES_MAX + 4 + 7
        return found

    parts, _ = attempt(feed_pieces, FormatError)
    assert (parts is None) == (whole is None), "whether it is refused depends on the pieces"
    outcome: list[object] = [place]
    for command in whole or []:
        if command.type is CommandType.MESSAGE:
            position_of(command.body.message_id)
            outcome.append(attempt(lambda: decode_frame(command.entry), FormatError)[1])  # noqa: B023
        outcome.append(command.type)
    return tuple(outcome[:6])


def settings_seeds() -> list[bytes]:
    return [
        b'streaming_offload = true\n[offload]\nblock_size = "64KiB"\ncodec = "zstd"\n[read]\nrelocate = {"a" = "b"}\n',
        (
            b'[namespaces."public/default"]\nstreaming_offload = false\n[namespaces."public/default".retention]\n'
            b'policy = "size"\nmin_size = "5MiB"\nmax_size = "9728KiB"\n'
        ),
        f'[topics."{STREAM}".offload]\nmethod = "ledger"\non_gap = "record"\n[limits]\nbytes_per_s = 1e6\n'.encode(),
        b'[retention]\npolicy = "consumption"\nmin_age = "1m"\n[cleanup]\naudit_period = "1d"\n',
    ]


WORDS = [
    "[",
    "]]",
    "=",
    '"',
    "\n",
    "nan",
    "inf",
    "-1",
    "1e999",
    "9" * 400,
    "true",
    "[[offload]]",
    "\\u0000",
    "é",
    "#",
    "{",
    "2026-01-01",
]
WORDS += [name for section in Settings.__dataclass_fields__ for name in (section, f"[{section}]")]


def change_settings(rng: random.Random, pool: list[bytes]) -> bytes:
    return mutate_text(rng, pool, WORDS)


def check_settings(data: bytes) -> Outcome:
    """A settings file is taken whole, or refused with every problem in one line."""
    path = Path(tempfile.gettempdir()) / f"fuzzed-{random.getrandbits(64):x}.toml"
    path.write_bytes(data)
    said: list[str] = []

    def read() -> SettingsFile:
        try:
            return read_settings_file(str(path))
        except OffloaderError as error:
            said.append(str(error))
            raise

    try:
        found, place = attempt(read, OffloaderError)
    finally:
        path.unlink()
    if found is None:
        # What is wrong with a file is raised at one place: words tell it apart.
        return (
            place,
            *re.findall(r"isn't TOML|no such \w+|is none of|is not [a-z]+ [a-z]+|has no effect|missing", said[-1])[:4],
        )
    found.settings_of(STREAM)
    return ("taken", len(found.values_of(STREAM)))


def name_seeds() -> list[bytes]:
    keys = [
        f"{STREAM}/{UUID_TEXT}-ledger-7-index",
        f"_catalog/{encode_stream(STREAM)}",
        "manifest/00000000000000000042.json",
    ]
    return [text.encode() for text in (STREAM, encode_stream(STREAM), "größe/ü/x", "7:12", "a%2Fb/%2e%2e/c", *keys)]


def change_names(rng: random.Random, pool: list[bytes]) -> bytes:
    return mutate_text(
        rng, pool, ["/", "..", "%2F", "%2e", "%", "//", ":", "-", "_catalog", "\x00", "é", "\\", "\u202e", "9" * 30]
    )


def check_names(data: bytes) -> Outcome:
    """A name that is taken comes back from its key, and the key can't leave its root."""
    text = data.decode("utf-8", "surrogateescape")
    encoded, place = attempt(lambda: encode_stream(text), FormatError)
    if encoded is not None:
        assert decode_stream(encoded) == text, "a name doesn't come back"
        assert not {"", ".", ".."} & set(encoded.split("/")), "a key leaves its root"
        assert not encoded.startswith("_"), "a name takes the catalogue's place"
        encoded.encode("ascii")
    decoded, other = attempt(lambda: decode_stream(text), FormatError)
    assert decoded is None or encode_stream(decoded) == text, "two keys for one name"
    found = [attempt(lambda: way(text), FormatError, ValueError)[1] for way in (Position.parse, stream_of_catalog_key)]  # noqa: B023
    parse_object_key(text, STREAM)
    record_number(text)
    return (place, other, *found)


TARGETS = [
    Target("frames", frame_seeds, check_frames, per_s=26_000),
    Target("settings", settings_seeds, check_settings, change_settings, per_s=4500),
    Target("names", name_seeds, check_names, change_names, per_s=16_000),
]
