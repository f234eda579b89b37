"""Layered settings (process, namespace, topic) from a TOML file, with each value's source; and a sample of such a file.

A setting is named by its section and attribute, ``offload.block_size``, in files and in Python. A file may also use the
names of PIP-76 and Pulsar.
"""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from offloader.errors import InvalidCallError, NotFoundError
from offloader.settings import Pairs, Settings, StoreSettings
from offloader.settings.fields import allowed, amount_text, from_file, in_file
from offloader.settings.pulsar_names import REFUSED, TRANSLATED, translation_of
from offloader.settings.retention import KEEP_SETTINGS
from offloader.stream_names import is_segment, partition_of, place_of, require_stream_name


def _plain(key: str) -> str:
    """A key in lower case without underscores, equal for ``maxSize`` and ``max_size``."""
    return key.replace("_", "").lower()


#: PIP-76's switch, an alias of ``offload.method``.
STREAMING = "streaming_offload"
#: The switch and its spellings in a broker's offload policies.
_SWITCHES = (STREAMING, "offload.streamingOffload", "streamingOffload")
#: Setting -> its field.
FIELDS: Mapping[str, Field[Any]] = {
    f"{section.name}.{each.name}": each
    for section in fields(Settings)
    for each in fields(getattr(Settings(), section.name))
}


#: Name of PIP-76 -> the setting. The values are numbers in the unit of that name.
ALIASES: Mapping[str, str] = {
    f"{name.partition('.')[0]}.{each.metadata['alias']}": name
    for name, each in FIELDS.items()
    if each.metadata.get("alias")
}
#: Pulsar name in lower case -> the equivalent key.
PULSARS: Mapping[str, str] = {
    **{name.lower(): setting for name, (setting, _) in TRANSLATED.items()},
    **{name.lower(): instead for name, instead in REFUSED.items() if " " not in instead},
}
#: Normalized key (``_plain``) -> key.
_PLAIN_KEYS: Mapping[str, str] = {_plain(name): name for name in (*FIELDS, *ALIASES, STREAMING)}
#: Minimum similarity of an unknown key and the suggested key, as measured by ``difflib``.
_SIMILAR_MIN = 0.8


def value_of(name: str, value: object) -> Any:
    """A setting's value from its form in a settings file; raises ``ValueError`` with the reason if it is invalid."""
    found = FIELDS[name]
    return from_file(found.metadata, found.default, value)


_METHOD = "offload.method"
#: Scheme of a topic's name -> third level of the stream's name.
_SCHEMES = {"persistent://": "persistent", "topic://": "topic"}
_SECTIONS = tuple(each.name for each in fields(Settings))
#: Sections that apply to the whole process: all streams share the component.
PROCESS_SECTIONS = frozenset(
    {"store", "limits", "telemetry", "manifest", "access", "http", "pulsar", "serve", "flight", "broker"}
)
#: Settings of other sections that apply to the whole process.
PROCESS_SETTINGS = frozenset(
    {
        "cleanup.cycle_interval",
        "cleanup.orphans_interval",
        "ledgers.poll_interval",
        "offload.offload_memory_size_max",
        "offload.workers_max",
        "retention.cycle_interval",
    }
)
#: Settings of process sections that a namespace or topic may override: they apply to new objects only.
STREAM_SETTINGS = frozenset({"store.kms_key", "store.storage_class"})
#: Setting -> the only offload method that uses it.
METHOD_OF = {
    "offload.offload_threshold_size": "ledger",
    "offload.offload_threshold_age": "ledger",
    "offload.segment_age_max": "streaming",
    "offload.segment_age_limit": "streaming",
    "offload.segment_size_min": "streaming",
    "offload.drain_timeout": "streaming",
}
#: Settings that also apply with the method none: entries must fit if the stream is offloaded later.
NEEDS_NO_METHOD = frozenset(
    {
        "offload.method",
        "offload.entry_size_max",
        "offload.offload_buffer_size_max",
        "offload.tail_cache_size_max",
        *PROCESS_SETTINGS,
    }
)
#: Pairs of settings: the first must not exceed the second (unless 0 means no limit).
AT_MOST = (
    ("offload.entry_size_max", "offload.offload_buffer_size_max"),
    ("offload.offload_buffer_size_max", "offload.offload_memory_size_max"),
    ("offload.block_size", "read.block_size_max"),
    ("offload.entry_size_max", "read.block_size_max"),
    ("read.block_size_max", "read.decompressed_size_max"),
    ("store.retry_delay_first", "store.retry_delay_max"),
    ("limits.slowdown_requests_per_s_min", "limits.requests_per_s"),
)
_SCOPES = ("namespaces", "topics")


def is_of_process(name: str) -> bool:
    """Whether all streams of a process share a setting."""
    return (name.partition(".")[0] in PROCESS_SECTIONS or name in PROCESS_SETTINGS) and name not in STREAM_SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredStoreSettings(StoreSettings):
    """Settings of a store that all streams share, with the overrides of namespaces and topics.

    Attributes:
        layers: scope and values of each namespace and topic, as in ``SettingsFile``.
    """

    layers: tuple[tuple[str, Pairs], ...] = ()

    def of_stream(self, stream: str) -> StoreSettings:
        known = dict(self.layers)
        return self._with(*(known[scope] for scope in _scopes_of(stream) if scope in known))

    def all_layers(self) -> tuple[StoreSettings, ...]:
        # A topic also inherits the values of its namespace.
        return (self, *(self.of_stream(_any_stream(scope)) for scope, _ in self.layers))

    def _with(self, *layers: Pairs) -> StoreSettings:
        values = {each.name: getattr(self, each.name) for each in fields(StoreSettings)}
        for layer in layers:
            values |= dict(layer)
        return StoreSettings(**values)


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One setting of one stream.

    Attributes:
        name: section and attribute, ``offload.block_size``.
        value: the effective value.
        source: ``default``, or the file and its table.
    """

    name: str
    value: Any
    source: str

    def as_json(self) -> dict[str, Any]:
        """The setting in its settings file form: an amount has a unit."""
        return {"name": self.name, "value": in_file(self.value), "source": self.source}


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A validated file: every setting is known and has an effect.

    Attributes:
        name: of the file, for messages.
        layers: scope (``""`` process, ``namespaces.X``, ``topics.X``) -> section and attribute -> value.
    """

    name: str = ""
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def values_of(self, stream: str) -> dict[str, EffectiveValue]:
        """Every setting of a stream, by section and attribute."""
        found = {name: EffectiveValue(name, each.default, "default") for name, each in FIELDS.items()}
        found[_METHOD] = EffectiveValue(_METHOD, "ledger", f"default ({STREAMING} = false)")
        for scope in _scopes_of(stream):
            layer = self.layers.get(scope, {})
            found |= {name: EffectiveValue(name, value, self._place(scope)) for name, value in layer.items()}
        return found

    def settings_of(self, stream: str) -> Settings:
        """The settings of a stream; the empty name selects the process settings.

        Raises:
            InvalidCallError: values out of range.
        """
        sections: dict[str, dict[str, Any]] = {}
        process = self.layers.get("", {})
        for value in self.values_of(stream).values():
            section, _, name = value.name.partition(".")
            # All streams share the store; ``LayeredStoreSettings`` carries the overrides.
            is_shared = value.name in STREAM_SETTINGS
            given = process.get(value.name, FIELDS[value.name].default) if is_shared else value.value
            sections.setdefault(section, {})[name] = given
        found = Settings.of(sections, origin=self.name or "settings")
        layers = tuple(
            (scope, Pairs({name.partition(".")[2]: layer[name] for name in STREAM_SETTINGS & layer.keys()}))
            for scope, layer in self.layers.items()
            if scope and STREAM_SETTINGS & layer.keys()
        )
        if not layers:
            return found
        values = {each.name: getattr(found.store, each.name) for each in fields(StoreSettings)}
        return replace(found, store=LayeredStoreSettings(**values, layers=layers))

    def _place(self, scope: str) -> str:
        kind, _, name = scope.partition(".")
        return f"{self.name} [{kind[:-1]} {name}]" if kind else f"{self.name} [process]"


def read_settings_file(path: str) -> SettingsFile:
    """Reads and validates a file.

    Raises:
        NotFoundError: no such file.
        InvalidCallError: not TOML; or unknown, ineffective or contradictory settings. The message lists all of them,
            each with its table.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as cause:
        raise NotFoundError(f"settings file {path} doesn't exist", hint="check the path") from cause
    except UnicodeDecodeError as cause:
        raise InvalidCallError(f"settings file {path} isn't TOML: {cause}", hint="nothing was changed") from cause
    except OSError as cause:
        raise InvalidCallError(
            f"settings file {path}: {cause.strerror}", hint="make it a file that this user can read"
        ) from cause
    return parse_settings(text, path)


def parse_settings(text: str, path: str) -> SettingsFile:
    """Validates the text of the file ``path``; raises ``InvalidCallError`` like ``read_settings_file``."""
    tables, problems = raw_layers(parse_toml(text, path))
    layers, wrong, unclear = _translated(tables)
    problems += wrong
    problems += conflicts(SettingsFile(path, layers), unclear)
    if problems:
        raise InvalidCallError(f"{path}: {'; '.join(problems)}", hint="nothing was changed; every problem is listed")
    return SettingsFile(path, layers)


def parse_toml(text: str, path: str) -> dict[str, Any]:
    """The document of the file ``path``; raises ``InvalidCallError`` if it isn't TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as cause:  # ValueError also for integers with thousands of digits
        raise InvalidCallError(f"settings file {path} isn't TOML: {cause}", hint="nothing was changed") from cause


def settings_for(stream: str, given: Settings | str | Path | None) -> Settings:
    """The settings of a stream from settings, from the path of a settings file, or the defaults for ``None``.

    A file has PIP-76's defaults: without ``streaming_offload = true`` the method is ``ledger``.

    Raises:
        NotFoundError, InvalidCallError: like ``read_settings_file``.
    """
    if given is None:
        return Settings()
    return given if isinstance(given, Settings) else read_settings_file(str(given)).settings_of(stream)


def _scopes_of(stream: str) -> list[str]:
    levels = stream.split("/")
    namespace = [f"namespaces.{'/'.join(levels[:2])}"] if len(levels) > 2 else []
    partition = partition_of(stream)
    above = [partition[0]] if partition else []
    if is_segment(stream) and (place := place_of(stream)) is not None:
        above = [place]
    topics = [*above, *([stream] if stream else [])]
    return ["", *namespace, *(f"topics.{name}" for name in topics)]


def _stream_of(topic: str) -> str:
    """The stream of ``persistent://tenant/namespace/topic``, and the documents' name of ``topic://...``; other names
    are returned unchanged."""
    for scheme, kind in _SCHEMES.items():
        levels = topic.removeprefix(scheme).split("/", 2)
        if topic.startswith(scheme) and len(levels) == 3 and levels[2]:
            return f"{levels[0]}/{levels[1]}/{kind}/{levels[2]}"
    return topic


def raw_layers(given: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The document's values by scope and key, and the problems of scopes that are not tables."""
    problems: list[str] = []
    tables: dict[str, Any] = {"": {name: value for name, value in given.items() if name not in _SCOPES}}
    for kind in _SCOPES:
        named = given.get(kind, {})
        if not isinstance(named, dict):
            problems.append(f"{kind}: not a table of names")
            continue
        for name, table in named.items():
            scope = f"{kind}.{_stream_of(name) if kind == 'topics' else name}"
            if scope in tables:
                problems.append(
                    f"{_place(scope, '').removesuffix('.')}: is given twice: once as a stream, once as a topic name"
                )
            tables[scope] = table
    layers: dict[str, dict[str, Any]] = {}
    for scope, table in tables.items():
        if not isinstance(table, dict):
            problems.append(f"{_place(scope, '')}: not a table")
            continue
        layer = layers[scope] = {}
        for name, value in table.items():
            is_table = isinstance(value, dict)
            layer |= {f"{name}.{inner}": each for inner, each in value.items()} if is_table else {name: value}
    return layers, problems


def _translated(
    tables: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], list[str], set[str]]:
    """The valid settings by scope and attribute, the problems of the others, and the scopes whose method is unclear."""
    layers: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    unclear: set[str] = set()
    for scope, table in tables.items():
        layer = layers[scope] = {}
        if why := _no_scope(scope):
            problems.append(f"{_place(scope, '').removesuffix('.')}: has no effect, {why}")
        for key, given in table.items():
            try:
                name, value = _setting(scope, key, given)
                if name in layer and name != _METHOD:
                    raise ValueError(f"{name} is set twice, by this and another name")
            except ValueError as cause:
                section = key.partition(".")[0]
                problems.append(f"{_place(scope, key if section in _SECTIONS else section)}: {cause}")
                unclear |= set(tables) if key in (*_SWITCHES, _METHOD) else set()
                continue
            if name in layer and (layer[name] == "streaming") != (value == "streaming"):
                switch = next(
                    f"{_place(scope, each)} = {str(table[each]).lower()}" for each in _SWITCHES if each in table
                )
                problems.append(f"{switch} contradicts {_METHOD} = {table[_METHOD]!r}")
                unclear.add(scope)
            # The method takes precedence: the switch can't express "none".
            if key not in _SWITCHES or name not in layer:
                layer[name] = value
    return layers, list(dict.fromkeys(problems)), unclear


def _no_scope(scope: str) -> str:
    """The reason why no stream can have such a namespace or topic; empty: the scope is valid."""
    kind, _, name = scope.partition(".")
    try:
        if kind == "topics":
            require_stream_name(name)
        elif kind and (name.count("/") != 1 or "" in name.split("/")):
            return "a namespace is TENANT/NAMESPACE, such as public/default"
    except InvalidCallError as error:
        return f"{error.message}: {error.hint}"
    return ""


def _setting(scope: str, key: str, given: object) -> tuple[str, Any]:
    """The setting and value of a key of a layer; raises ``ValueError`` with the reason if it is invalid."""
    if key in _SWITCHES:
        if not isinstance(given, bool):
            raise ValueError(f"{given!r} is neither true nor false")
        return _METHOD, "streaming" if given else "ledger"
    section = key.partition(".")[0]
    pulsar = translation_of(key)
    name = pulsar[0] if pulsar else ALIASES.get(key, key)
    if name not in FIELDS:
        if section in _SECTIONS or section == key:
            raise ValueError(f"no such setting{_meant(scope, _similar(key))}")
        close = get_close_matches(section, _SECTIONS, 1)
        raise ValueError(f"no such section (sections: {', '.join(_SECTIONS)}){_meant(scope, *close)}")
    if pulsar:
        value = value_of(name, pulsar[1](given))
    elif key in ALIASES:
        value = value_of(name, amount_text(given, FIELDS[name].metadata["alias_unit"]))
    else:
        value = value_of(name, given)
    if scope and is_of_process(name):
        raise ValueError("applies to the whole process, set it at the top level of the file")
    return name, value


def _similar(key: str) -> str:
    """The key that an unknown key probably means; empty: no similar key exists."""
    plain = _plain(key)
    name = plain.rpartition(".")[2]
    if name in PULSARS:
        return PULSARS[name]
    if close := get_close_matches(plain, _PLAIN_KEYS, 1, _SIMILAR_MIN):
        return _PLAIN_KEYS[close[0]]
    same = [known for each, known in _PLAIN_KEYS.items() if each.rpartition(".")[2] == name]  # in another section
    return same[0] if len(same) == 1 else ""


def _meant(scope: str, key: str = "") -> str:
    return f"; did you mean {_place(scope, key)}?" if key else ""


def conflicts(found: SettingsFile, unclear: Collection[str] = ()) -> Iterator[str]:
    """Contradictory and ineffective settings; ``unclear``: scopes whose method is unknown."""
    for scope, layer in found.layers.items():
        if scope not in unclear:
            yield from _ineffective(scope, layer, _methods_below(found, scope))
    pulsar = {name: found.values_of("")[f"pulsar.{name}"].value for name in ("broker_plugin", "follow_broker_trim")}
    if pulsar["follow_broker_trim"] and not pulsar["broker_plugin"]:
        yield "pulsar.follow_broker_trim: has no effect, pulsar.broker_plugin is false"
    for scope in found.layers:
        yield from _size_conflicts(found, scope)
        if any(name.startswith("retention.") for name in found.layers[scope]):
            kept = [name for each in KEEP_SETTINGS if (name := f"retention.{each}") in found.layers[scope]]
            if found.layers[scope].get("retention.policy") == "none":
                yield from (f"{_key(scope, name)}: has no effect, the policy is none" for name in kept)
            retention = found.settings_of(_any_stream(scope)).retention
            yield from (f"{_key(scope, 'retention')}.{problem}" for problem in retention.problems())


def _ineffective(scope: str, layer: Mapping[str, Any], methods: set[str]) -> Iterator[str]:
    """Settings of a layer that no method of its streams uses."""
    for name in layer:
        wanted = METHOD_OF.get(name)
        if wanted is not None and wanted not in methods:
            yield f"{_key(scope, name)}: has no effect, only the method {wanted} uses it"
        elif methods == {"none"} and name.startswith("offload.") and name not in NEEDS_NO_METHOD:
            yield f"{_key(scope, name)}: has no effect, the method is none"


def _any_stream(scope: str) -> str:
    """Name of a stream to which a layer applies: its topic, one in its namespace, or the empty name."""
    kind, _, name = scope.partition(".")
    return f"{name}/persistent/any" if kind == "namespaces" else name


def _methods_below(found: SettingsFile, scope: str) -> set[str]:
    streams = {stream for stream in map(_any_stream, found.layers) if scope in _scopes_of(stream)}
    return {found.values_of(stream)[_METHOD].value for stream in {_any_stream(scope), *streams}}


def _size_conflicts(found: SettingsFile, scope: str) -> Iterator[str]:
    """Values that are valid alone but not together, if this layer sets at least one of them."""
    values, layer = found.values_of(_any_stream(scope)), found.layers[scope]
    for key, limit in AT_MOST:
        value, most = values[key], values[limit]
        unlimited = limit.startswith("limits.") and not most.value
        # A default above another setting's value is not a contradiction.
        said = value.source != "default" and (key in layer or limit in layer)
        if said and not unlimited and value.value > most.value:
            amount, bound = in_file(value.value), in_file(most.value)
            yield f"{_key(scope, key)} = {_text(amount)} is above {limit} = {_text(bound)}"
    segment, key = "offload.segment_size_max", "offload.block_size"
    if (key in layer or segment in layer) and values[key].value > values[segment].value:
        block, size = in_file(values[key].value), in_file(values[segment].value)
        yield f"{_key(scope, key)} = {block} is above the segment size ({size})"


def _key(scope: str, name: str) -> str:
    return _place(scope, name)


def _place(scope: str, key: str) -> str:
    kind, _, inner = scope.partition(".")
    return f'{kind}."{inner}".{key}' if kind else key


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


_WIDTH = 100
_HEAD = """\
# Settings of offloader, for `offloader serve --config FILE` and every command that accepts --config.
#
# This file lists every setting with its default as `#name = value`. Remove the # to change a setting.
# `offloader config check --config FILE` reports all errors. `offloader config explain TOPIC` shows the effective
# settings of a topic and their sources. A running process reloads the file on SIGHUP. A duration is a number with a
# unit: ms, s, m, h or d. A size is a number with a unit: B, KiB, MiB, GiB or TiB.
"""
_TAIL = """\
# --- overrides per namespace or topic -----------------------------------------------------------------------------
# You can override store.kms_key, store.storage_class, and every setting that isn't marked "whole process" per
# namespace and per topic. Topic settings take precedence over namespace settings, and those over the settings above.
#
#[namespaces."public/default".offload]
#codec = "zstd"
#
#[topics."public/default/persistent/orders".retention]
#policy = "time"
#min_age = "7d"
"""
_UNITS = {"s": "seconds", "m": "minutes", "B": "bytes", "MiB": "MiB"}
#: Example values of settings that a new file should set.
_EXAMPLES = {"serve.store": '"s3://BUCKET/ROOT"', "offload.method": '"streaming"'}


def sample_settings() -> str:
    """The text of a settings file that lists every setting with its default."""
    # Sections with required settings first.
    sections = [
        "\n".join(_section(name, getattr(Settings(), name))) + "\n"
        for name in sorted(_SECTIONS, key=lambda name: name != "serve")
    ]
    return "\n".join([_HEAD, *sections, _TAIL])


def _section(name: str, values: Any) -> Iterator[str]:
    yield from _comment(f"{type(values).__doc__}{' Whole process.' if name in PROCESS_SECTIONS else ''}")
    yield f"[{name}]"
    for each in fields(values):
        yield ""
        yield from _comment(_said(name, each))
        full = f"{name}.{each.name}"
        key = each.name
        value = "{}" if isinstance(each.default, Pairs) else json.dumps(in_file(each.default))
        yield f"{key} = {_EXAMPLES[full]}" if full in _EXAMPLES else f"#{key} = {value}"


def _said(section: str, each: Field[Any]) -> str:
    full = f"{section}.{each.name}"
    notes = [allowed(each.metadata)]
    if full in METHOD_OF:
        notes.append(f"method {METHOD_OF[full]} only")
    if each.metadata.get("alias"):
        notes.append(f"or as a number: {each.metadata['alias']} in {_UNITS[each.metadata['alias_unit']]}")
    if full in STREAM_SETTINGS:
        notes.append("can be overridden per namespace and topic")
    if full in PROCESS_SETTINGS:
        notes.append("whole process")
    doc = str(each.metadata["doc"])
    return f"{doc[0].upper()}{doc[1:]} ({'; '.join(notes)})."


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
