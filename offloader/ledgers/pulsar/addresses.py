"""Where brokers are: service URLs and the addresses in them; pure.

Owns reading those URLs. Must never open a connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from offloader.errors import InvalidCall

__all__ = ["BrokerAddress", "parse_service_url"]

#: Scheme -> the port where an URL names none, whether it is TLS.
_SCHEMES = {"pulsar": (6650, False), "pulsar+ssl": (6651, True)}
#: More than any cluster lists; a URL may come from a broker's answer.
ADDRESSES_MAX = 100


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker, or a proxy."""

    host: str
    port: int
    tls: bool = False

    @property
    def host_and_port(self) -> str:
        """As a proxy is told where to go on to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'pulsar+ssl' if self.tls else 'pulsar'}://{self.host_and_port}"


def parse_service_url(url: str) -> tuple[BrokerAddress, ...]:
    """``pulsar://broker:6650``, ``pulsar+ssl://broker:6651``, or several ``host:port`` with commas between.

    Raises:
        InvalidCall: it isn't one.
    """
    scheme, separator, rest = url.partition("://")
    hosts = rest.rstrip("/").split(",")
    try:
        port, tls = _SCHEMES[scheme.lower()]
        if not separator or len(hosts) > ADDRESSES_MAX:
            raise ValueError
        return tuple(_address(host, port, tls) for host in hosts)
    except (KeyError, ValueError) as cause:
        raise InvalidCall(
            f"{ascii(url)[:200]} is no Pulsar service URL", hint="give pulsar://broker:6650 or pulsar+ssl://broker:6651"
        ) from cause


def _address(text: str, default_port: int, tls: bool) -> BrokerAddress:
    parts = urlsplit(f"//{text}")
    if parts.path or parts.query or parts.fragment or parts.username is not None or not parts.hostname:
        raise ValueError
    port = default_port if parts.port is None else parts.port
    if not port:
        raise ValueError
    return BrokerAddress(parts.hostname, port, tls)
