"""Where a Pulsar cluster is, who we are there, which topics are ours and how much of them may wait in memory.

Owns the section `pulsar`. Must never hold a component or read a file, an environment variable or the network; nor a
token itself, only where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from offloader.settings.fields import MIB, choice, flag, setting, text, texts

__all__ = ["PulsarSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSettings:
    """A Pulsar cluster as a hot tier."""

    service_url: str = text("", "of brokers or proxies, `pulsar://broker:6650` or `pulsar+ssl://broker:6651`")
    admin_url: str = text("", "of the admin interface, `http://broker:8080` or `https://broker:8443`")
    token: str = text(
        "", "where the token is: `file:PATH` or `env:NAME`; empty: `env:OFFLOADER_PULSAR_TOKEN`, if it is set"
    )
    ca_file: str = text("", "certificate authorities of brokers and admin interface; empty: the machine's")
    certificate_file: str = text("", "our certificate, where brokers ask for one")
    key_file: str = text("", "its key; empty: in `certificate_file`")
    subscription: str = text(
        "offloader", "name of our durable subscription, the same in all processes that share topics"
    )
    topics: tuple[str, ...] = texts(
        "topics to offload: names, and patterns with * and ?, `public/default/orders-*`; `public/default`: all of it"
    )
    exclude: tuple[str, ...] = texts("topics that aren't offloaded although `topics` means them")
    topics_seconds: float = setting(
        30.0, "time between two looks for new and deleted topics and partitions", low=0.1, high=24 * 3600
    )
    subscribers_seconds: float = setting(
        300.0,
        "time between two looks at the topics' subscriptions, which hold back what retention would delete",
        low=0.1,
        high=24 * 3600,
    )
    hand_over_seconds: float = setting(
        60.0,
        "silence of the store after which a topic is left to another process that waits for it; 0: never",
        low=0.0,
        high=24 * 3600,
    )
    topics_max: int = setting(10_000, "topics and partitions of one process", low=1, high=1_000_000)
    on_gap: str = choice(
        "record",
        "what to do when entries were gone before they were offloaded: record the gap and go on, or block",
        ("record", "block"),
    )
    entries_asked_max: int = setting(
        1000,
        "entries of one run that wasn't delivered about which the admin interface is asked; the others are unconfirmed",
        low=1,
        high=1_000_000,
    )
    trim: bool = flag(True, "ask the broker at once to delete what was given up; else it does when it likes")
    receive_bytes_max: int = setting(128 * MIB, "received and not taken yet, all topics together", low=MIB, high=2**40)
    connect_seconds_max: float = setting(10.0, "to connect to a broker", low=0.1, high=600)
    request_seconds_max: float = setting(30.0, "for a broker's answer", low=0.1, high=600)
    keep_alive_seconds: float = setting(
        30.0, "silence after which a broker is asked whether it is there", low=0.1, high=600
    )
    retry_seconds_max: float = setting(
        10.0, "longest wait before something that failed is tried again", low=0.01, high=3600
    )
    workers_max: int = setting(8, "threads that read topics and tell their streams, whole process", low=1, high=256)
