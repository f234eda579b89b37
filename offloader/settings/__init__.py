"""Settings: frozen values with their defaults, limits and checks, a module for each few sections.

Owns every tunable and its name. Must never hold a component (store, clock, pool) or read a file,
an environment variable or the network.
"""

from offloader.settings.access import LimitSettings, ReadSettings, StoreSettings
from offloader.settings.doors import AccessSettings, HttpSettings
from offloader.settings.fields import Pairs
from offloader.settings.flight import FlightSettings
from offloader.settings.keeping import CleanupSettings, ManifestSettings, RetentionSettings
from offloader.settings.offload import LedgerSettings, OffloadSettings
from offloader.settings.pulsar import PulsarSettings
from offloader.settings.serve import ServeSettings
from offloader.settings.telemetry import TelemetrySettings
from offloader.settings.whole import Settings

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
