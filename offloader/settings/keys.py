"""Keys of a settings file and the settings they mean: current keys, PIP-76's aliases, keys of earlier releases.

A setting is named by its section and attribute, ``offload.block_bytes``; a key is what the file has,
``offload.block_size``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from offloader.settings.fields import from_file, in_file, problem
from offloader.settings.values import REPLACED, Settings

#: PIP-76's switch, an alias of ``offload.method``.
STREAMING = "streaming_offload"
#: Every setting.
FIELDS: Mapping[str, Field[Any]] = {
    f"{section.name}.{each.name}": each
    for section in fields(Settings)
    for each in fields(getattr(Settings(), section.name))
}


def key_of(name: str) -> str:
    """The key of a setting."""
    field = FIELDS.get(name)
    return name if field is None or "key" not in field.metadata else f"{name.partition('.')[0]}.{field.metadata['key']}"


#: Key -> setting.
SETTINGS: Mapping[str, str] = {key_of(name): name for name in FIELDS}
#: PIP-76's and Pulsar's names, with numbers in the setting's unit.
ALIASES = frozenset(name for name, field in FIELDS.items() if field.metadata.get("is_alias"))
#: Keys of earlier releases, with numbers in the unit that their names end in -> setting.
OLD: Mapping[str, str] = {
    **{name: name for name in FIELDS if key_of(name) != name and name not in ALIASES},
    **REPLACED,
}


def shown(name: str, value: Any) -> Any:
    """A setting's value as a settings file has it: amounts as texts."""
    return in_file(FIELDS[name].metadata, value)


def value_of(name: str, value: object) -> Any:
    """A setting's value from its form in a settings file; raises ``ValueError`` that says why it is none."""
    field = FIELDS[name]
    return value_of_alias(name, from_file(field.metadata, field.default, value))


def value_of_alias(name: str, value: object) -> Any:
    """The same from a number in the setting's unit, as aliases and keys of earlier releases have it. Raises
    ``ValueError``: it isn't one, or out of bounds."""
    field = FIELDS[name]
    wrong = problem(field.metadata, field.default, value)
    if wrong:
        raise ValueError(wrong)
    default: Any = field.default
    return default.__class__(value)
