"""What a producer hears while its call is open: an answer to each batch, and news in between.

Owns the order of what is written to one call. Must never write after the call has ended, nor let a producer that
doesn't listen hold up anybody but itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Protocol

import pyarrow as pa
import pyarrow.flight as fl

from offloader.ledgers.pushed import PushNews
from offloader.service.flight.messages import Answer

__all__ = ["Answers", "NewsSource"]

#: Longest sleep of the thread that tells news before it looks whether the call is still open.
_WAIT_S_MAX = 1.0


class NewsSource(Protocol):
    """A stream, as far as its producer wants to hear of it."""

    def news(self) -> PushNews:
        """How far entries are taken and durable now."""
        ...

    def wait_for_news(self, seen: PushNews, within_s: float) -> PushNews:
        """The news when it isn't ``seen`` any more, when something happened, or after ``within_s``."""
        ...

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        ...


class Answers:
    """A context: after the first answer and while it is open, a thread tells what changes between the batches.

    Args:
        writer: of the call.
        source: the stream.
        trouble: what the producer should end its call for; empty: nothing. It is told once.
    """

    def __init__(self, writer: fl.FlightMetadataWriter, source: NewsSource, trouble: Callable[[], str]) -> None:
        self._writer, self._source, self._trouble = writer, source, trouble
        self._lock = threading.Lock()
        self._open = True
        self._told = PushNews(None, None)
        self._told_trouble = False
        self._thread = threading.Thread(target=self._tell_news, name="offloader-flight-news", daemon=True)

    def __enter__(self) -> Answers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._source.wake()
        if self._thread.is_alive():
            self._thread.join()

    def write(self, answer: Answer) -> None:
        """Answers a batch, with the newest there is to say; waits until the producer has room for it."""
        with self._lock:
            self._told = self._source.news()
            self._writer.write(
                pa.py_buffer(replace(answer, taken=self._told.taken, durable=self._told.durable).encode())
            )
        if self._thread.ident is None:
            self._thread.start()

    def _tell_news(self) -> None:
        seen = self._told
        while self._open:
            found = self._source.wait_for_news(seen, _WAIT_S_MAX)
            trouble = "" if self._told_trouble else self._trouble()
            with self._lock:
                seen = found
                if not self._open or (found == self._told and not trouble):
                    continue
                self._told, self._told_trouble = found, self._told_trouble or bool(trouble)
                try:
                    self._writer.write(
                        pa.py_buffer(Answer(taken=found.taken, durable=found.durable, error=trouble).encode())
                    )
                except (pa.ArrowException, fl.FlightError, OSError):
                    return  # nobody is there any more; the reading side hears of it
