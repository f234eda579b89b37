"""A look at a cluster: which topics of it are meant.

Owns what has to be asked for that. Must never take for absent what it couldn't ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from offloader.errors import NotFound, OffloaderError
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.topic_patterns import TopicPatterns
from offloader.ledgers.pulsar.topic_roster import Look

__all__ = ["survey"]


#: Requests in a row that fail before no more are made: each may take as long as its deadline.
FAILURES_MAX = 3


def survey(
    admin: AdminClient, patterns: TopicPatterns, *, is_stopped: Callable[[], bool] = lambda: False
) -> tuple[Look, OffloaderError | None]:
    """Which topics there are that are meant, and the first error of what couldn't be asked.

    Args:
        admin: of the cluster.
        patterns: what is meant.
        is_stopped: whether nobody wants to know any more; what wasn't asked by then counts as failed.
    """
    first: OffloaderError | None = None
    is_whole = True
    namespaces = set(patterns.namespaces)
    lists: list[Callable[[], Sequence[str]]] = [partial(admin.namespaces_of, tenant) for tenant in patterns.tenants]
    for ask in [admin.namespaces] if patterns.is_everywhere else lists:
        try:
            namespaces |= {each for each in ask() if patterns.have_namespace(each)}
        except NotFound:
            pass  # no such tenant: none of its topics are there
        except OffloaderError as error:
            first, is_whole = first or error, False
    topics: dict[str, frozenset[str]] = {}
    failed: set[str] = set()
    in_a_row = 0
    for namespace in sorted(namespaces):
        if is_stopped() or in_a_row >= FAILURES_MAX:
            failed.add(namespace)
            continue
        in_a_row += 1
        try:
            topics[namespace] = frozenset(each for each in admin.topics(namespace) if patterns.have(each))
        except NotFound:
            topics[namespace] = frozenset()
        except OffloaderError as error:
            first = first or error
            failed.add(namespace)
            continue
        in_a_row = 0
    return Look(topics, frozenset(failed), is_whole), first
