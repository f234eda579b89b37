"""The parts of one segment on their way into the store, and the segment's end: completion, proof, index.

Owns what may start when, and how many parts are on their way at once. Must never send anything before it is told that
the segment is assigned, complete an object while a part of it is on its way, or call a segment sent of which one of its
two objects isn't known to be there.

    parts, ``parts_in_flight_max`` at once ----> completion -> proof --+
    index, as soon as the last entry is encoded -----------------------+--> sent

The index doesn't wait for the data object. Nothing takes an index for a sign that its data is there: whoever finds one
(a later owner, a rebuild, the search for orphans) asks for the data object first, and an index alone belongs to a
segment that fails and is swept. So it costs no round trip at a segment's end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from formats.segment import FinishedSegment, Part, SegmentSummary
from offloader.workers import Workers
from offloader.write.segment.upload import SegmentUpload

__all__ = ["SegmentSending"]

#: Parts made ahead of a connection. Making one takes a small part of the time that sending it takes; more of them would
#: be memory that the system has to clear first, and that the next block finds outside the processor's cache.
READY_PARTS_MAX = 2


class SegmentSending:
    """Used by an ``OffloadHandle``; what is marked so is called under its lock, the rest without.

    Args:
        upload: where the objects go.
        workers: who sends.
        lock: of the stream's segments and their buffer.
        parts_in_flight_max: parts on their way at once.
        begun: whether the segment is assigned; else ``begin`` says so.
        on_change: called under the lock when ``unsent_bytes`` changed.
        on_room: called by a worker when a part is acknowledged.
        on_sent: called by a worker when both objects are in the store.
        on_failure: called by a worker with why they won't be.

    Attributes:
        unsent_bytes: of parts that aren't acknowledged.
    """

    __slots__ = (
        "_completion_begun",
        "_dropped",
        "_finished",
        "_in_flight",
        "_index_begun",
        "_lock",
        "_multipart",
        "_objects_missing",
        "_on_change",
        "_on_failure",
        "_on_room",
        "_on_sent",
        "_parts_in_flight_max",
        "_parts_made",
        "_ready",
        "_upload",
        "_workers",
        "begun",
        "unsent_bytes",
    )

    def __init__(
        self,
        upload: SegmentUpload,
        workers: Workers,
        lock: AbstractContextManager[object],
        *,
        parts_in_flight_max: int,
        begun: bool,
        on_change: Callable[[], None],
        on_room: Callable[[], None],
        on_sent: Callable[[SegmentSummary], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._upload = upload
        self._workers = workers
        self._lock = lock
        self._parts_in_flight_max = parts_in_flight_max
        self._on_change, self._on_room = on_change, on_room
        self._on_sent, self._on_failure = on_sent, on_failure
        self.begun = begun
        self.unsent_bytes = 0
        self._dropped = False
        self._ready: deque[Part] = deque()
        self._in_flight = 0
        self._parts_made = 0
        self._multipart = False
        self._finished: FinishedSegment | None = None
        self._index_begun = self._completion_begun = False
        self._objects_missing = 2

    @property
    def is_moving(self) -> bool:
        """Whether parts are on their way or about to be; under the lock."""
        return self.begun and bool(self._ready or self._in_flight)

    @property
    def is_ahead(self) -> bool:
        """Whether enough parts wait for a connection; under the lock."""
        return len(self._ready) >= READY_PARTS_MAX

    @property
    def is_finished(self) -> bool:
        """Whether there will be no more parts; under the lock."""
        return self._finished is not None

    def add(self, parts: Sequence[Part]) -> None:
        """Takes the next parts; under the lock."""
        self._ready.extend(parts)
        self._parts_made += len(parts)
        self.unsent_bytes += sum(part.size_bytes for part in parts)
        self._on_change()

    def finish(self, finished: FinishedSegment) -> None:
        """Takes the last parts and the index; under the lock."""
        # Without the parts: each goes with its own sending, and who is done with the segment may still know of it.
        self._finished = replace(finished, parts=[])
        self.add(finished.parts)

    def drop(self) -> None:
        """Forgets what isn't sent and reports nothing any more; under the lock."""
        self._dropped = True
        self._ready.clear()
        self.unsent_bytes = 0

    def begin(self) -> None:
        """The segment is recorded as assigned: what is ready goes out."""
        with self._lock:
            self.begun = True
        self.launch()

    def launch(self) -> None:
        """Starts what may start now: parts up to the limit, the index, the completion after the last part."""
        start: list[Part] = []
        with self._lock:
            if self._dropped or not self.begun:
                return
            while self._ready and self._in_flight < self._parts_in_flight_max:
                start.append(self._ready.popleft())
                self._in_flight += 1
            finished = self._finished
            send_index = finished is not None and not self._index_begun
            complete = finished is not None and not self._ready and not self._in_flight and not self._completion_begun
            self._index_begun |= send_index
            self._completion_begun |= complete
            # A segment below one part is a single PUT; a first part that is full while entries still come is not.
            whole = finished is not None and self._parts_made == 1 and not self._multipart
            if start and not whole:
                self._multipart = True
        for part in start:
            self._workers.submit(lambda part=part: self._send(part, whole))  # type: ignore[misc]
        if finished is not None and send_index:
            self._workers.submit(lambda: self._send_index(finished))
        if finished is not None and complete:
            self._workers.submit(lambda: self._complete(finished))

    def _send(self, part: Part, whole: bool) -> None:
        try:
            if whole:
                self._upload.send_whole(part)
            else:
                self._upload.send_part(part)
        except BaseException as error:
            self._on_failure(error)
            return
        finally:
            with self._lock:
                self._in_flight -= 1
                if not self._dropped:
                    self.unsent_bytes -= part.size_bytes
                    self._on_change()
        self.launch()
        self._on_room()

    def _send_index(self, finished: FinishedSegment) -> None:
        if self._dropped:  # it would only be one more object to sweep
            return
        try:
            self._upload.send_index(finished.index)
        except BaseException as error:
            self._on_failure(error)
            return
        self._object_is_there(finished)

    def _complete(self, finished: FinishedSegment) -> None:
        try:
            if self._multipart:
                self._upload.complete()
            self._upload.prove(finished.summary.data_bytes)
        except BaseException as error:
            self._on_failure(error)
            return
        self._object_is_there(finished)

    def _object_is_there(self, finished: FinishedSegment) -> None:
        with self._lock:
            self._objects_missing -= 1
            sent = not self._objects_missing
        if sent:
            self._on_sent(finished.summary)
