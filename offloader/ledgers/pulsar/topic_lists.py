"""The ledgers of topics, from a broker's admin interface or from saved output of ``pulsar-admin``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from offloader.errors import InvalidCallError, NotFoundError
from offloader.ledgers.pulsar.admin import CONNECTIONS_MAX, AdminClient
from offloader.ledgers.pulsar.topics import TopicLedgers, is_text, ledgers_of_topics
from offloader.ledgers.pulsar.transport import ADMIN_TOKEN_VARIABLE, open_security
from offloader.parallel_map import at_once

#: Comma-separated hosts that may receive the token after a redirect of the admin interface, with * as a wildcard.
HOSTS_VARIABLE = "OFFLOADER_ADMIN_HOSTS"
_HINT = "save the output of `pulsar-admin topics stats-internal TOPIC`, and name that file"


def saved_topics(path: str | Path, topic: str = "") -> Iterator[TopicLedgers]:
    """The ledgers in a file with the output of ``pulsar-admin topics stats-internal``.

    Args:
        topic: its name, if the file doesn't have it.

    Raises:
        NotFoundError: the file can't be read.
        InvalidCallError: it isn't such output.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as cause:
        raise NotFoundError(f"internal statistics: {path} can't be read: {cause.strerror}", hint=_HINT) from cause
    except ValueError as cause:
        raise InvalidCallError(f"internal statistics: {path} isn't JSON: {cause}", hint=_HINT) from cause
    yield from ledgers_of_topics(document, topic)


def listed_topics(admin_url: str, namespaces: Sequence[str] = ()) -> list[TopicLedgers]:
    """The ledgers of all topics of a Pulsar, or of namespaces; sends the token in ``OFFLOADER_ADMIN_TOKEN``.

    Raises:
        InvalidCallError: an invalid name of a namespace.
        StoreUnavailableError, AccessDeniedError: the admin interface can't be used.
    """
    for namespace in namespaces:
        if not is_text(namespace):
            raise InvalidCallError(f"{namespace!r} isn't a namespace", hint="names look like public/default")
    hosts = [host.strip() for host in os.environ.get(HOSTS_VARIABLE, "").split(",") if host.strip()]
    with AdminClient(admin_url, security=open_security(token_variable=ADMIN_TOKEN_VARIABLE), hosts=hosts) as client:
        names = [topic for namespace in namespaces or client.namespaces() for topic in client.topics(namespace)]
        found = at_once(partial(_ledgers, client), names, in_flight_max=CONNECTIONS_MAX)
        return [topic for topic in found if topic is not None]


def _ledgers(client: AdminClient, topic: str) -> TopicLedgers | None:
    with suppress(NotFoundError):  # deleted since the listing
        return client.ledgers(topic)
    return None
