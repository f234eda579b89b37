"""Settings: frozen values with their defaults, limits and checks.

Every tunable and its name is defined in this package. The package holds no component (store, clock, pool). Only
``layered`` reads files; none of the modules reads environment variables or the network.
"""

from offloader.settings.fields import Duration, Pairs, Size
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
    "Duration",
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
    "Size",
    "StoreSettings",
    "TelemetrySettings",
]
