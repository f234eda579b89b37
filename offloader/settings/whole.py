"""All settings together: sections by name, from nested mappings, every problem at once.

Must never hold a component (store, clock, pool) or read a file, an environment variable or the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from offloader.errors import InvalidCall
from offloader.settings.access import LimitSettings, ReadSettings, StoreSettings
from offloader.settings.doors import AccessSettings, HttpSettings
from offloader.settings.fields import problem as problem_of
from offloader.settings.flight import FlightSettings
from offloader.settings.keeping import CleanupSettings, ManifestSettings, RetentionSettings
from offloader.settings.offload import LedgerSettings, OffloadSettings
from offloader.settings.pulsar import PulsarSettings
from offloader.settings.serve import ServeSettings
from offloader.settings.telemetry import TelemetrySettings

__all__ = ["REPLACED", "Settings"]

#: Settings of earlier releases -> what is set instead.
REPLACED = {
    "limits.upload_bytes_per_s": "limits.bytes_per_s",
    "limits.read_bytes_per_s": "limits.bytes_per_s",
    "limits.upload_requests_per_s": "limits.requests_per_s",
    "limits.read_requests_per_s": "limits.requests_per_s",
    "limits.delete_requests_per_s": "limits.requests_per_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of it."""

    offload: OffloadSettings = OffloadSettings()
    ledgers: LedgerSettings = LedgerSettings()
    store: StoreSettings = StoreSettings()
    read: ReadSettings = ReadSettings()
    limits: LimitSettings = LimitSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    manifest: ManifestSettings = ManifestSettings()
    cleanup: CleanupSettings = CleanupSettings()
    retention: RetentionSettings = RetentionSettings()
    access: AccessSettings = AccessSettings()
    http: HttpSettings = HttpSettings()
    flight: FlightSettings = FlightSettings()
    serve: ServeSettings = ServeSettings()
    pulsar: PulsarSettings = PulsarSettings()

    @classmethod
    def of(cls, values: Mapping[str, Mapping[str, Any]] | None = None, *, origin: str = "settings") -> Settings:
        """Settings from nested mappings ``{"offload": {"block_bytes": 65536}}``; what isn't named keeps its default.

        Args:
            values: section -> name -> value.
            origin: where the values come from, for the error message.

        Raises:
            InvalidCall: unknown names, wrong types and values out of range, all of them at once.
        """
        problems: list[str] = []
        sections: dict[str, Any] = {}
        kinds: dict[str, Any] = {f.name: type(f.default) for f in fields(cls)}
        for name, given in (values or {}).items():
            if name not in kinds:
                problems.append(f"{name}: no such section (sections: {', '.join(kinds)})")
                continue
            sections[name], found = _section(name, kinds[name], given)
            problems += [f"{name}.{problem}" for problem in found]
        if problems:
            raise InvalidCall(f"{origin}: {'; '.join(problems)}", hint="nothing was changed")
        return cls(**sections)


def _section(section: str, kind: type[Any], given: Mapping[str, Any]) -> tuple[Any, list[str]]:
    known = {f.name: f for f in fields(kind)}
    problems = [f"{name}: {_unknown(f'{section}.{name}')}" for name in given if name not in known]
    taken: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            problem = problem_of(known[name].metadata, known[name].default, value)
            if problem:
                problems.append(f"{name}: {problem}")
            else:
                default: Any = known[name].default
                taken[name] = default.__class__(value)
    return kind(**taken), problems


def _unknown(name: str) -> str:
    instead = REPLACED.get(name)
    return "no such setting" if instead is None else f"no such setting any more, use {instead}"
