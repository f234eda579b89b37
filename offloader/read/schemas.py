"""The schemas of a topic's values: from files, from the topic's broker, or recorded in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from offloader.errors import InvalidCallError, NotFoundError
from offloader.ledgers.pulsar.scalable import place_of_topic, scalable_topic_of
from offloader.ledgers.pulsar.topics import topic_of_stream
from offloader.ledgers.pulsar.transport import ADMIN_TOKEN_VARIABLE, open_security
from offloader.manifest.topic_layouts import read_layout
from offloader.read.values import MessageSchema, schema_of
from offloader.store.base import ObjectStore
from offloader.stream_names import partition_of

SCHEMA_BYTES_MAX = 16 * 1024 * 1024

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchemas:
    """Where the schemas of values come from.

    Attributes:
        files: schema version -> file; ``None``: the schema of all other versions. A file is Avro as JSON, the output of
            ``pulsar-admin schemas get``, or protobuf descriptors.
        message_type: the message type in protobuf descriptors.
        admin_url: the admin interface of a Pulsar that has the schemas of other versions. The token is in
            ``OFFLOADER_ADMIN_TOKEN``.
        recorded: use the schemas that ``offloader serve`` recorded of a scalable topic, for versions without a file.
    """

    files: Mapping[int | None, str | Path] = field(default_factory=dict)
    message_type: str = ""
    admin_url: str = ""
    recorded: bool = False

    def decoders(
        self, store: ObjectStore, stream: str, make: Callable[..., _Made]
    ) -> tuple[dict[int | None, _Made], Callable[[int | None], _Made] | None] | None:
        """The arguments of ``VersionedDecoders``; ``None``: there is no schema.

        Args:
            store: of the stream.
            stream: of the topic with the schemas; or the name of a scalable topic, or of a segment of it.
            make: ``value_decoder`` or a function with the same signature.

        Raises:
            NotFoundError, InvalidCallError, UnsupportedError: a schema can't be used.
        """
        if self.message_type and not self.files:
            raise InvalidCallError("--message-type requires --schema", hint="give --schema FILE too")
        found: dict[int | None, _Made] = {}
        for version, path in self.files.items():
            what = f"--schema {path}"
            try:
                with Path(path).open("rb") as opened:
                    document = opened.read(SCHEMA_BYTES_MAX)
            except OSError as cause:
                raise NotFoundError(f"{what} can't be read: {cause.strerror}", hint="check the path") from cause
            found[version] = make(schema_of(document, what=what, message_type=self.message_type), what=what)
        ask = None if not self.admin_url else self._broker(stream, make)
        if self.recorded:
            ask = _recorded(store, stream, make, ask)
        return (found, ask) if found or ask is not None else None

    def _broker(self, stream: str, make: Callable[..., _Made]) -> Callable[[int | None], _Made]:
        split = partition_of(stream)
        topic = scalable_topic_of(stream) or topic_of_stream(stream if split is None else split[0])
        if topic is None:
            raise InvalidCallError(
                f"stream {stream} has no topic's name, so no broker has its schema", hint="give --schema"
            )
        return partial(_asked, self.admin_url, topic, make)


def _recorded(
    store: ObjectStore, stream: str, make: Callable[..., _Made], ask: Callable[[int | None], _Made] | None
) -> Callable[[int | None], _Made]:
    """Makes the decoder of a recorded version, of the newest one for messages without a version; else ``ask``."""
    topic = scalable_topic_of(stream)
    layout = None if topic is None else read_layout(store, place_of_topic(topic))
    if layout is None or not layout.schemas:
        raise NotFoundError(
            f"stream {stream} has no recorded schemas",
            hint="only schemas of scalable topics are recorded; give --schema FILE or --admin-url",
        )
    schemas, topic = layout.schemas, layout.topic

    def decoder(version: int | None) -> _Made:
        found = [schemas[-1]] if version is None else [each for each in schemas if each.version == version]
        if len(found) > 1:
            raise ValueError(
                f"its schema version is {version}, which was deleted and created again with another definition"
            )
        if found:
            [one] = found
            what = f"the recorded schema of {topic}, version {one.version},"
            return make(MessageSchema(one.type, one.data, one.properties), what=what)
        if ask is None:
            raise ValueError(f"its schema version is {version}, which is not recorded")
        return ask(version)

    return decoder


def _asked(admin_url: str, topic: str, make: Callable[..., _Made], version: int | None) -> _Made:
    """The decoder of one version, from the broker's schema."""
    from offloader.ledgers.pulsar.admin import AdminClient  # Spark's executors have no HTTP client

    what = f"the schema of {topic}, {'the newest version' if version is None else f'version {version}'},"
    try:
        with AdminClient(admin_url, security=open_security(token_variable=ADMIN_TOKEN_VARIABLE)) as client:
            schema = MessageSchema(*client.schema(topic, version))
    except NotFoundError as cause:
        given = "" if version is None else f"{version}="
        raise NotFoundError(
            f"the broker does not have {what.removesuffix(',')}: {cause.message}",
            hint=f"give the schema with --schema {given}FILE, or leave out --admin-url",
        ) from cause
    return make(schema, what=what)
