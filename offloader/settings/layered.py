"""Layered settings (process, namespace, topic) from a TOML file, with each value's source."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from offloader.errors import InvalidCall, NotFound
from offloader.settings import RetentionSettings, Settings

__all__ = ["EffectiveValue", "SettingsFile", "read_settings_file", "settings_for"]

#: PIP-76's switch; on the topic level and the others.
STREAMING = "streaming_offload"
#: Sections of the whole process: all streams share what they describe.
PROCESS_SECTIONS = frozenset(
    {"store", "limits", "telemetry", "manifest", "access", "http", "pulsar", "serve", "flight"}
)
#: Settings of other sections that apply to the whole process.
PROCESS_SETTINGS = frozenset(
    {
        "cleanup.cycle_minutes",
        "cleanup.orphans_hours",
        "offload.offload_memory_bytes_max",
        "offload.workers_max",
        "retention.cycle_minutes",
    }
)
#: Settings of a single method.
METHOD_OF = {
    "offload.offload_threshold_bytes": "ledger",
    "offload.offload_threshold_seconds": "ledger",
    "offload.max_offload_segment_rollover_time_minutes": "streaming",
    "offload.drain_seconds_max": "streaming",
}
#: Settings that apply even to a stream that isn't offloaded: its entries must fit if it is later.
NEEDS_NO_METHOD = frozenset(
    {
        "offload.method",
        "offload.entry_bytes_max",
        "offload.offload_buffer_bytes_max",
        "offload.tail_cache_bytes_max",
        *PROCESS_SETTINGS,
    }
)
#: The first is useless or harmful above the second (unless 0 means no limit).
AT_MOST = (
    ("offload.entry_bytes_max", "offload.offload_buffer_bytes_max"),
    ("offload.offload_buffer_bytes_max", "offload.offload_memory_bytes_max"),
    ("offload.block_bytes", "read.block_bytes_max"),
    ("offload.entry_bytes_max", "read.block_bytes_max"),
    ("read.block_bytes_max", "read.decompressed_bytes_max"),
    ("store.retry_delay_first_s", "store.retry_delay_max_s"),
    ("limits.slowdown_requests_per_s_min", "limits.requests_per_s"),
)
_SCOPES = ("namespaces", "topics")


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One setting of one stream.

    Attributes:
        name: section and name, ``offload.block_bytes``.
        value: the effective value.
        source: ``default``, or the file and its table.
    """

    name: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A checked file: every setting is known and has an effect.

    Attributes:
        name: of the file, for messages.
        layers: scope (``""`` process, ``namespaces.X``, ``topics.X``) -> setting -> value.
    """

    name: str = ""
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def values_of(self, stream: str) -> dict[str, EffectiveValue]:
        """Every setting of a stream, by name."""
        found = {
            f"{section.name}.{each.name}": EffectiveValue(f"{section.name}.{each.name}", each.default, "default")
            for section in fields(Settings)
            for each in fields(getattr(Settings(), section.name))
        }
        found[STREAMING] = EffectiveValue(STREAMING, False, "default")
        found["offload.method"] = EffectiveValue("offload.method", "ledger", f"{STREAMING} = false (default)")
        for scope in _scopes_of(stream):
            for name, value in self.layers.get(scope, {}).items():
                found[name] = EffectiveValue(name, value, self._place(scope))
                if name == STREAMING:
                    method = "streaming" if value else "ledger"
                    found["offload.method"] = EffectiveValue("offload.method", method, found[name].source)
                elif name == "offload.method":
                    found[STREAMING] = EffectiveValue(STREAMING, value == "streaming", found[name].source)
        return found

    def settings_of(self, stream: str) -> Settings:
        """The settings of a stream; ``""``: of the process.

        Raises:
            InvalidCall: values that are out of range.
        """
        sections: dict[str, dict[str, Any]] = {}
        for value in self.values_of(stream).values():
            section, _, name = value.name.partition(".")
            if name:
                sections.setdefault(section, {})[name] = value.value
        return Settings.of(sections, origin=self.name or "settings")

    def _place(self, scope: str) -> str:
        kind, _, name = scope.partition(".")
        return f"{self.name} [{kind[:-1]} {name}]" if kind else f"{self.name} [process]"


def read_settings_file(path: str) -> SettingsFile:
    """Reads and checks a file.

    Raises:
        NotFound: no such file.
        InvalidCall: not TOML; or unknown, ineffective or contradictory settings: all of them, each with its table.
    """
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise NotFound(f"settings file {path} doesn't exist", hint="check the path") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise InvalidCall(f"settings file {path} isn't TOML: {cause}", hint="nothing was changed") from cause
    except OSError as cause:
        raise InvalidCall(f"settings file {path}: {cause.strerror}", hint="is it a readable file?") from cause
    layers, problems = _layers(given)
    wrong = list(_range_problems(layers))
    problems += [problem for _, _, problem in wrong]
    # Check combinations only of values that are valid by themselves.
    rest = {
        scope: {name: value for name, value in layer.items() if (scope, name) not in {each[:2] for each in wrong}}
        for scope, layer in layers.items()
    }
    methods_are_known = not {name for _, name, _ in wrong} & {STREAMING, "offload.method"}
    problems += _conflicts(SettingsFile(path, rest), methods_are_known=methods_are_known)
    found = SettingsFile(path, layers)
    if problems:
        raise InvalidCall(f"{path}: {'; '.join(problems)}", hint="nothing was changed; every problem is listed")
    return found


def settings_for(stream: str, given: Settings | str | Path | None) -> Settings:
    """The settings of a stream from a caller's settings, settings file path, or nothing.

    A file has PIP-76's defaults: without ``streaming_offload = true`` a stream is offloaded ledger by ledger.

    Raises:
        NotFound, InvalidCall: as ``read_settings_file``.
    """
    if given is None:
        return Settings()
    return given if isinstance(given, Settings) else read_settings_file(str(given)).settings_of(stream)


def _scopes_of(stream: str) -> list[str]:
    levels = stream.split("/")
    namespace = [f"namespaces.{'/'.join(levels[:2])}"] if len(levels) > 2 else []
    return ["", *namespace, *([f"topics.{stream}"] if stream else [])]


def _layers(given: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The file's tables by scope, and the rest."""
    problems: list[str] = []
    tables: dict[str, Any] = {"": {name: value for name, value in given.items() if name not in _SCOPES}}
    for kind in _SCOPES:
        named = given.get(kind, {})
        if not isinstance(named, dict):
            problems.append(f"{kind}: not a table of names")
            continue
        tables |= {f"{kind}.{name}": table for name, table in named.items()}
    layers: dict[str, dict[str, Any]] = {}
    for scope, table in tables.items():
        layer: dict[str, Any] = {}
        if not isinstance(table, dict):
            problems.append(f"{_key(scope, '')}: not a table")
            continue
        for name, value in table.items():
            if isinstance(value, dict):
                layer |= {f"{name}.{inner}": each for inner, each in value.items()}
            else:
                layer[name] = value
        layers[scope] = layer
    return layers, problems


def _range_problems(layers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Scope, name and problem: unknown name, wrong type, value out of range, process setting in a narrower scope."""
    for scope, layer in layers.items():
        for name, value in layer.items():
            problem = _problem_of(scope, name, value)
            if problem:
                yield scope, name, problem


def _problem_of(scope: str, name: str, value: object) -> str:
    section, _, inner = name.partition(".")
    if name == STREAMING:
        return "" if isinstance(value, bool) else f"{_key(scope, name)}: {value!r} is neither true nor false"
    if not inner:
        return f"{_key(scope, name)}: no such setting"
    try:
        Settings.of({section: {inner: value}})
    except InvalidCall as error:
        return f"{_key(scope, '')}{error.message.removeprefix('settings: ')}"
    if scope and (section in PROCESS_SECTIONS or name in PROCESS_SETTINGS):
        return f"{_key(scope, name)}: holds for the whole process, set it at the top of the file"
    return ""


def _conflicts(found: SettingsFile, *, methods_are_known: bool) -> Iterator[str]:
    """Contradictory and ineffective settings."""
    for scope, layer in found.layers.items():
        method = layer.get("offload.method")
        if STREAMING in layer and method is not None and layer[STREAMING] != (method == "streaming"):
            yield f"{_key(scope, STREAMING)} = {str(layer[STREAMING]).lower()} contradicts offload.method = {method!r}"
        elif methods_are_known:
            yield from _ineffective(scope, layer, _methods_below(found, scope))
    for scope in found.layers:
        yield from _size_conflicts(found, scope)
        yield from _retention_conflicts(found, scope)


def _ineffective(scope: str, layer: Mapping[str, Any], methods: set[str]) -> Iterator[str]:
    """Settings of a layer that none of its streams' methods uses."""
    for name in layer:
        wanted = METHOD_OF.get(name)
        if wanted is not None and wanted not in methods:
            yield f"{_key(scope, name)}: has no effect, only the method {wanted} looks at it"
        elif methods == {"none"} and name.startswith("offload.") and name not in NEEDS_NO_METHOD:
            yield f"{_key(scope, name)}: has no effect, the method is none"


def _methods_below(found: SettingsFile, scope: str) -> set[str]:
    """The methods of the streams in a layer."""
    kind, _, name = scope.partition(".")
    topics = [other.partition(".")[2] for other in found.layers if other.startswith("topics.")]
    namespaces = [other.partition(".")[2] for other in found.layers if other.startswith("namespaces.")]
    if kind == "topics":
        streams = [name]
    elif kind == "namespaces":
        streams = [f"{name}/persistent/any", *(topic for topic in topics if topic.startswith(f"{name}/"))]
    else:
        streams = ["", *topics, *(f"{each}/persistent/any" for each in namespaces)]
    return {found.values_of(stream)["offload.method"].value for stream in streams}


def _size_conflicts(found: SettingsFile, scope: str) -> Iterator[str]:
    """Values that are valid alone, but not together; only those with a part in this layer."""
    kind, _, name = scope.partition(".")
    stream = name if kind == "topics" else f"{name}/persistent/any" if kind else ""
    values, layer = found.values_of(stream), found.layers[scope]
    for key, limit in AT_MOST:
        value, most = values[key], values[limit]
        unlimited = limit.startswith("limits.") and not most.value
        # A default cut off by another setting is no contradiction.
        said = value.source != "default" and (key in layer or limit in layer)
        if said and not unlimited and value.value > most.value:
            yield f"{_key(scope, key)} = {value.value:g} is above {limit} = {most.value:g}"
    segment, key = "offload.max_size_per_offload_segment_mbytes", "offload.block_bytes"
    segment_bytes = values[segment].value * 1024 * 1024
    if (key in layer or segment in layer) and values[key].value > segment_bytes:
        yield f"{_key(scope, key)} = {values[key].value} is above the segment size ({segment_bytes:g} bytes)"


def _retention_conflicts(found: SettingsFile, scope: str) -> Iterator[str]:
    """Contradictions of a layer's retention settings."""
    if not any(name.startswith("retention.") for name in found.layers[scope]):
        return
    kind, _, name = scope.partition(".")
    stream = name if kind == "topics" else f"{name}/persistent/any" if kind else ""
    values = {each.name: each.value for each in found.values_of(stream).values() if each.name.startswith("retention.")}
    section = RetentionSettings(**{each.partition(".")[2]: value for each, value in values.items()})
    for problem in section.problems():
        yield f"{_key(scope, 'retention')}.{problem}"


def _key(scope: str, name: str) -> str:
    kind, _, inner = scope.partition(".")
    return f'{kind}."{inner}".{name}' if kind else name
