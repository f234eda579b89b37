"""Whether the log that a producer pushes is the one that is stored: by its entries, never by their positions.

A producer that names its log (``source``) hears of what is taken and durable only as far as that is proven: up to the
entry whose checksum it gave, and on from there by pushing entries again. So a log that was lost and began again, or an
older copy of it, hears of nothing that it doesn't hold.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from uuid import UUID

from formats.entries import EntryBatch, Position
from offloader.errors import SourceMismatch
from offloader.ledgers.push_order import NotNext
from offloader.ledgers.push_window import first_difference
from offloader.ledgers.pushed import PushedLedgers, PushNews
from offloader.read.reader import Reader, open_reader
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

__all__ = ["Proof", "another_log"]


class Proof:
    """Of one call; also the call's news.

    Args:
        source: the stream.
        store: has the entries that are durable.
        settings: of readers.
        is_named: whether the producer named its log; else only what it pushes again is compared.
    """

    def __init__(self, source: PushedLedgers, store: ObjectStore, settings: ReadSettings, *, is_named: bool) -> None:
        self._source, self._store, self._settings = source, store, settings
        committed = source.news().durable
        #: What has to be proven before the producer hears of all there is.
        self._wanted = committed if is_named else None
        self._proven: Position | None = None
        self._reader: Reader | None = None
        self._seen = PushNews(None, None)

    def begin(self, last: Position, crc32: int) -> None:
        """Compares the newest entry that the producer heard to be durable.

        Raises:
            SourceMismatch: it isn't durable, or another entry is.
        """
        durable = self._source.news().durable
        if durable is None or last > durable:
            raise another_log(self._source.stream, f"it heard that {last} is durable, and {durable or 'nothing'} is")
        for stored in self._stored(last, last):
            found = zlib.crc32(stored.payloads[0].as_buffer() or b"")
            if found != crc32:
                raise another_log(
                    self._source.stream, f"entry {last} has CRC-32 {crc32:#010x}, stored is {found:#010x}"
                )
        self._proven = last

    def compare(self, batches: Sequence[EntryBatch]) -> None:
        """Compares what was pushed again of what is durable.

        Raises:
            SourceMismatch: a durable entry has other bytes.
            NotNext: entries come before the producer has proven that they follow what is there.
        """
        durable = self._source.news().durable
        for batch in batches:
            first, last = batch.first, batch.last
            if len(batch) != last.entry_id + 1 - first.entry_id:
                continue  # a hole: refused when it is taken
            if durable is not None and first <= durable:
                again = batch
                if last > durable:
                    again = batch.slice(0, durable.entry_id + 1 - first.entry_id)
                self._compare(again)
                self._proven = again.last if self._proven is None else max(self._proven, again.last)
            if self._wanted is not None and last > self._wanted and not self._is_proven:
                raise NotNext(
                    f"stream {self._source.stream}: {first} was pushed, and nothing shows that this log has what is "
                    f"durable up to {self._wanted}",
                    hint=f"push again from after {self._proven or 'the beginning'}, or give last and crc32 of the "
                    "newest entry that was durable",
                )

    def close(self) -> None:
        """Reads nothing more."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # -- news

    def news(self) -> PushNews:
        """How far entries are taken and durable, as far as the producer may hear of it."""
        return self._limited(self._source.news())

    def wait_for_news(self, seen: PushNews, within_s: float) -> PushNews:  # noqa: ARG002 - what was told may be limited
        """The news when there are other ones than at the last call, when something happened, or after ``within_s``."""
        self._seen = self._source.wait_for_news(self._seen, within_s)
        return self._limited(self._seen)

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        self._source.wake()

    @property
    def _is_proven(self) -> bool:
        return self._wanted is None or (self._proven is not None and self._proven >= self._wanted)

    def _limited(self, news: PushNews) -> PushNews:
        if self._is_proven:
            return news
        proven = self._proven
        if proven is None:
            return PushNews(None, None)
        return PushNews(*(None if each is None else min(each, proven) for each in (news.taken, news.durable)))

    # -- the cold tier

    def _compare(self, again: EntryBatch) -> None:
        for stored in self._stored(again.first, again.last):
            low = stored.first.entry_id - again.first.entry_id
            pushed = again.slice(low, low + len(stored))
            at = first_difference(pushed.payloads, stored.payloads)
            if at is not None:
                other = Position(stored.ledger_id, stored.first.entry_id + at)
                raise another_log(self._source.stream, f"{other} was pushed again with other bytes")

    def _stored(self, first: Position, last: Position) -> list[EntryBatch]:
        """What is stored of a range; less where retention deleted some of it, or a gap was recorded."""
        if self._reader is None or self._reader.last_position is None or self._reader.last_position < last:
            self.close()
            self._reader = open_reader(self._store, self._source.stream, settings=self._settings)
        begin = self._reader.first_position
        if begin is None or begin > last:
            return []
        return list(self._reader.scan(max(first, begin), last))


def another_log(stream: str, why: str, known: UUID | None = None) -> SourceMismatch:
    """The producer's log isn't the one that was pushed before."""
    of = "" if known is None else f" of log {known}"
    return SourceMismatch(
        f"stream {stream}: what is stored{of} isn't this producer's: {why}. Nothing was taken",
        hint="go on with the log that was pushed before; or push this one to another stream",
    )
