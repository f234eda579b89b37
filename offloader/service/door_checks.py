"""Whether the doors of a serving process can be opened as the settings say, and are safe: for the doctor.

Owns these looks. Must never listen anywhere, nor show a secret.
"""

from __future__ import annotations

from collections.abc import Iterator

from offloader.doctor.findings import Finding, fine, warning
from offloader.service.auth import guard_for, open_credentials
from offloader.service.listen import parse_listen
from offloader.service.tls import server_tls
from offloader.settings import Settings

__all__ = ["DoorChecks"]


class DoorChecks:
    """See ``offloader.doctor.findings.Check``."""

    name = "access"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self) -> Iterator[Finding]:
        doors = {"http.listen": self._settings.http.listen, "flight.listen": self._settings.flight.listen}
        if not any(doors.values()):
            return
        access = self._settings.access
        credentials, tls = open_credentials(access), server_tls(access)
        yield fine("access", f"known: {credentials}" + ("; TLS" if tls is not None else ""))
        for setting, listen in doors.items():
            if not listen:
                continue
            address = parse_listen(listen, setting=setting)
            guard = guard_for(address, credentials, access, has_tls=tls is not None, setting=setting)
            if guard.anonymous is not None and not address.is_loopback:
                role = guard.anonymous.name.lower()
                yield warning(setting, f"anyone who reaches {address} may {role}", "access.anonymous says so")
            else:
                yield fine(setting, f"{address} may be opened")
