"""Settings: frozen values with their defaults, limits and checks, in a few modules.

Every tunable and its name is here. Holds no component (store, clock, pool) and reads no file, environment variable or
network.
"""

from offloader.settings.fields import Pairs
from offloader.settings.retention import RetentionSettings
from offloader.settings.values import (
    AccessSettings,
    BrokerSettings,
    CleanupSettings,
    FlightSettings,
    HttpSettings,
    LedgerSettings,
    LimitSettings,
    ManifestSettings,
    OffloadSettings,
    PulsarSettings,
    ReadSettings,
    ServeSettings,
    Settings,
    StoreSettings,
    TelemetrySettings,
)

__all__ = [
    "AccessSettings",
    "BrokerSettings",
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
