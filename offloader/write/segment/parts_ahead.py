"""Parts of one upload on their way while the next is being made.

Owns how many at once, and waiting for them. Must never let an upload end, or be aborted, while one of its parts may
still be sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context

from formats.segment import Part
from offloader.write.segment.upload import SegmentUpload

__all__ = ["PartsAhead"]


class PartsAhead:
    """Used by the one thread that makes the parts.

    Args:
        upload: what they belong to.
        parts_max: on their way at once; whoever asks for more than one has room for them, and for one that is made.
        send_aside: runs a call on another thread, sooner or later; ``None``: parts are sent one by one by the caller.
    """

    def __init__(
        self, upload: SegmentUpload, parts_max: int, send_aside: Callable[[Callable[[], object]], object] | None
    ) -> None:
        self._upload = upload
        self._parts_max = parts_max
        self._send_aside = send_aside if parts_max > 1 else None
        self._changed = threading.Condition()
        self._under_way = 0
        self._failure: BaseException | None = None

    def send(self, part: Part) -> None:
        """Sends a part, sooner or later; waits while ``parts_max`` are on their way.

        Raises: why this part, or an earlier one, couldn't be sent.
        """
        if self._send_aside is None:
            self._upload.send_part(part)
            return
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < self._parts_max)
            if self._failure is not None:
                raise self._failure
            self._under_way += 1
        # Whatever this thread's requests are marked with (their priority) goes with them.
        context = copy_context()
        self._send_aside(lambda: context.run(self._send, part))

    def finish(self) -> None:
        """Returns when all parts are sent; raises why one wasn't."""
        self.wait()
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Returns when no part is on its way any more, whatever became of them; each request has a deadline."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way == 0)

    def _send(self, part: Part) -> None:
        failure: BaseException | None = None
        try:
            if self._failure is None:
                self._upload.send_part(part)
        except BaseException as error:
            failure = error
        with self._changed:
            self._failure = self._failure or failure
            self._under_way -= 1
            self._changed.notify_all()
