"""Rewrites keys of earlier releases in a settings file and preserves comments, order and all other text.

``tomllib`` parses the document; ``_Scanner`` finds the position of each key and value in the text that it accepted.
Only these ranges are replaced. The result is parsed again and compared with the expected values before the file is
replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offloader.errors import AccessDenied, InvalidCall, NotFound
from offloader.settings.layered import (
    FIELDS,
    OLD,
    is_old,
    key_of,
    parse_settings,
    parse_toml,
    raw_layers,
    shown,
    value_of_alias,
)

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PART = re.compile(r"""[ \t]*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)[ \t]*""")
#: A string (longer quotes first), or any other value that is neither an array nor a table.
_SCALAR = re.compile(
    r"""
    ["]{3} (?: [^\\] | \\. )*? ["]{3,5}
    | [']{3} .*? [']{3,5}
    | " (?: [^"\\\n] | \\. )* "
    | ' [^'\n]* '
    | [^,\]}#\n]+
    """,
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Migration:
    """The text of a rewritten settings file, and its changes in file order: the old key with its table, and the new
    key."""

    before: str
    after: str
    changes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Position of a key and its value in the text.

    Attributes:
        table: the table of the header above it, with inline tables appended.
        parts: each part of the key with its begin and end.
        value: begin and end of the value.
    """

    table: tuple[str, ...]
    parts: tuple[tuple[str, int, int], ...]
    value: tuple[int, int]

    @property
    def place(self) -> tuple[str, str]:
        """Scope and key, as in ``raw_layers``."""
        path = (*self.table, *(name for name, _, _ in self.parts))
        scoped = 2 if path[0] in ("namespaces", "topics") else 0
        return ".".join(path[:scoped]), ".".join(path[scoped:])


@dataclass(slots=True)
class _Scanner:
    """Finds the pairs of a document that ``tomllib`` accepted, and the end of each table's header line or last pair."""

    text: str
    at: int = 0
    pairs: list[_Pair] = field(default_factory=list)
    tables: dict[tuple[str, ...], int] = field(default_factory=dict)

    def scan(self) -> None:
        table: tuple[str, ...] = ()
        while self._skip() < len(self.text):
            if self.text[self.at] == "[":
                self.at += 2 if self.text.startswith("[[", self.at) else 1
                table = tuple(name for name, _, _ in self._key())
            else:
                self._pair(table)
            self.at = line_end(self.text, self.at)
            self.tables[table] = self.at

    def _skip(self) -> int:
        self._take(_BLANK)
        return self.at

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        assert found is not None, "tomllib accepted the document"
        self.at = found.end()
        return found

    def _key(self) -> tuple[tuple[str, int, int], ...]:
        parts = []
        while True:
            found = self._take(_PART)
            name = found[1]
            parts.append((tomllib.loads(f"x = {name}")["x"] if name[0] in "\"'" else name, *found.span(1)))
            if self.text[self.at] != ".":
                return tuple(parts)
            self.at += 1

    def _pair(self, table: tuple[str, ...]) -> None:
        parts = self._key()
        self.at += 1  # the =
        begin = self._skip()
        self._value((*table, *(name for name, _, _ in parts)))
        self.pairs.append(_Pair(table, parts, (begin, self.at)))

    def _value(self, path: tuple[str, ...]) -> None:
        opening = self.text[self.at]
        if opening not in "[{":
            found = self._take(_SCALAR)
            self.at = found.start() + len(found[0].rstrip())
            return
        self.at += 1
        while self.text[self._skip()] not in "]}":
            if self.text[self.at] == ",":
                self.at += 1
            elif opening == "{":
                self._pair(path)
            else:
                self._value(path)
        self.at += 1


#: Limits that replace several earlier limits, each for one kind of traffic.
_SHARED = ("limits.bytes_per_s", "limits.requests_per_s")


def line_end(text: str, at: int) -> int:
    """End of the line at a position, including its line break."""
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def migrate_settings(text: str, path: str) -> Migration:
    """Rewrites the keys of earlier releases in the text of the file ``path``.

    Raises:
        InvalidCall: not TOML, or the rewritten file would not load.
    """
    old, problems = raw_layers(parse_toml(text, path))
    wanted, changes = _migrated(old, problems, path)
    scanner = _Scanner(text)
    scanner.scan()
    edits: list[tuple[int, int, str]] = []
    added: dict[tuple[str, ...], str] = {}
    for pair in scanner.pairs:
        scope, key = pair.place
        if not is_old(key):
            continue
        new = key_of(OLD[key])
        literal = json.dumps(wanted[scope][new])
        section, _, name = new.partition(".")
        if len(pair.parts) > 1 or key.startswith(f"{section}."):
            edits.append((*pair.value, literal))
            names = zip(reversed(pair.parts), (name, section), strict=False)
            edits += [(begin, end, new) for (_, begin, end), new in names]
        else:
            begin, end = _line_of(text, pair)
            added[(*pair.table[:-1], section)] = (
                text[begin : pair.parts[0][1]] + f"{name} = {literal}" + (text[pair.value[1] : end])
            )
            edits.append((begin, end, ""))
    text_after = _applied(text, edits, added, scanner)
    _verify(text_after, path, wanted)
    return Migration(text, text_after, changes)


def migrate_file(path: str, *, dry_run: bool) -> Migration:
    """Rewrites a settings file atomically; with ``dry_run`` only returns the changes.

    Raises:
        NotFound: no such file.
        AccessDenied: the file can't be read or written; nothing was changed.
        InvalidCall: like ``migrate_settings``; nothing was changed.
    """
    # Replace the target of a symbolic link, not the link.
    file = Path(path).resolve()
    try:
        found = migrate_settings(file.read_bytes().decode(), path)
        if found.after != found.before and not dry_run:
            _replace(file, found.after)
    except FileNotFoundError as cause:
        raise NotFound(f"settings file {path} doesn't exist", hint="check the path") from cause
    except UnicodeDecodeError as cause:
        raise InvalidCall(f"settings file {path} isn't TOML: {cause}", hint="nothing was changed") from cause
    except OSError as cause:
        raise AccessDenied(f"settings file {path}: {cause.strerror}", hint="nothing was changed") from cause
    return found


def _replace(file: Path, text: str) -> None:
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with beside.open("xb") as out:
            out.write(text.encode())
            out.flush()
            os.fsync(out.fileno())
        shutil.copymode(file, beside)
        with contextlib.suppress(PermissionError):
            os.chown(beside, file.stat().st_uid, file.stat().st_gid)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _migrated(
    old: Mapping[str, Mapping[str, Any]], problems: list[str], path: str
) -> tuple[dict[str, dict[str, Any]], tuple[tuple[str, str], ...]]:
    found: dict[str, dict[str, Any]] = {}
    changes: list[tuple[str, str]] = []
    for scope, layer in old.items():
        new = found[scope] = {key: value for key, value in layer.items() if not is_old(key)}
        for key, value in layer.items():
            if not is_old(key):
                continue
            name, target = OLD[key], key_of(OLD[key])
            try:
                # The value may already have the new form, with a unit.
                is_new = isinstance(value, str) and "quantity" in FIELDS[name].metadata
                number = value if is_new else shown(name, value_of_alias(name, value))
                if target in layer or target in new:
                    raise ValueError(f"{target} is set too")
                # Some kinds of traffic had no limit before, so the new limit can't be derived from the old ones.
                if target in _SHARED:
                    raise ValueError(f"one limit now covers all traffic: replace this key by {target} manually")
            except ValueError as cause:
                problems.append(f"{scope and f'{scope}.'}{key}: {cause}")
                continue
            new[target] = number
            changes.append((f"{scope and f'{scope}.'}{key}", target))
    if problems:
        raise InvalidCall(f"{path}: {'; '.join(problems)}", hint="nothing was changed; fix these settings first")
    return found, tuple(changes)


def _line_of(text: str, pair: _Pair) -> tuple[int, int]:
    """Begin and end of a pair's lines, including the comment above them."""
    begin = text.rfind("\n", 0, pair.parts[0][1]) + 1
    while begin:
        above = text.rfind("\n", 0, begin - 1) + 1
        if not text[above:begin].lstrip().startswith("#"):
            break
        begin = above
    return begin, line_end(text, pair.value[1])


def _applied(
    text: str, edits: list[tuple[int, int, str]], added: Mapping[tuple[str, ...], str], scanner: _Scanner
) -> str:
    for table, lines in added.items():
        begin = scanner.tables.get(table, len(text))
        head = "" if table in scanner.tables else f"\n[{'.'.join(table)}]\n"
        open_line = "" if text[:begin].endswith("\n") else "\n"
        edits.append((begin, begin, open_line + head + lines.rstrip("\r\n") + "\n"))
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def _verify(text: str, path: str, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    try:
        found, _ = raw_layers(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        found = {}
    if {each: layer for each, layer in found.items() if layer} != {k: layer for k, layer in wanted.items() if layer}:
        raise InvalidCall(
            f"{path}: keys of earlier releases can't be rewritten in this layout",
            hint="nothing was changed; write a table with a header for each section, or rename the keys manually",
        )
    parse_settings(text, path)
