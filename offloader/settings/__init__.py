"""Settings: frozen values with their defaults, limits and checks, a module for each few sections.

Owns every tunable and its name. Must never hold a component (store, clock, pool) or read a file,
an environment variable or the network.
"""

from offloader.settings.fields import Pairs
from offloader.settings.values import (
    AccessSettings,
    CleanupSettings,
    FlightSettings,
    HttpSettings,
    LedgerSettings,
    LimitSettings,
    ManifestSettings,
    OffloadSettings,
    PulsarSettings,
    ReadSettings,
    RetentionSettings,
    ServeSettings,
    Settings,
    StoreSettings,
    TelemetrySettings,
)

__all__ = [
    "AccessSettings",
    "CleanupSettings",
    "FlightSettings",
    "HttpSettings",
    "LedgerSettings",
    "LimitSettings",
    "ManifestSettings",
    "OffloadSettings",
    "Pairs",
    "PulsarSettings",
    "ReadSettings",
    "RetentionSettings",
    "ServeSettings",
    "Settings",
    "StoreSettings",
    "TelemetrySettings",
]
