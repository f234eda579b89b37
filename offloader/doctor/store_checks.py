"""Whether an object store is there, lets us do each verb, keeps its promises, and has the time.

Owns the scratch objects of these checks. Must never leave one behind where it may be deleted, nor touch anything else.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator

from offloader.clock import Clock
from offloader.doctor.findings import Finding, fine, problem, warning
from offloader.errors import AccessDenied, OffloaderError, StoreUnavailable, Unsupported
from offloader.manifest.global_hold import global_hold
from offloader.manifest.store_time import time_for_deletion_ms
from offloader.settings import Settings
from offloader.store.base import ByteRange, ObjectStore
from offloader.store.probe import PROBE_PREFIX, probe_conditional_puts

__all__ = ["StoreChecks"]

_BODY = b"offloader doctor"
#: Verb -> what S3 calls the permission.
_PERMISSIONS = {
    "list": "s3:ListBucket",
    "put": "s3:PutObject",
    "head and get": "s3:GetObject",
    "uploads": "s3:PutObject",
    "list parts": "s3:ListMultipartUploadParts",
    "list uploads": "s3:ListBucketMultipartUploads",
    "abort": "s3:AbortMultipartUpload",
    "delete": "s3:DeleteObject",
}


class StoreChecks:
    """See ``offloader.doctor.findings.Check``.

    Args:
        store: open for writing, or only reading is looked at.
        settings: of the process.
    """

    name = "store"

    def __init__(self, store: ObjectStore, settings: Settings, clock: Clock, *, read_only: bool = False) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._read_only = read_only
        #: Whether the store was found to answer.
        self.answers = False

    def run(self) -> Iterator[Finding]:
        try:
            self._store.list("", limit=1)
        except OffloaderError as error:
            # Everything else would say the same.
            yield problem("store reachable", error, _hint("list", error))
            return
        self.answers = True
        yield fine("store reachable", f"{self._store.url} answers")
        if self._read_only:
            return
        yield from self._verbs()
        yield from self._promises()
        yield from self._time()
        stop = global_hold(self._store)
        if stop is not None:
            yield warning(
                "store deletion",
                f"all deletion is stopped by {stop.by}: {stop.reason}",
                "`offloader cleanup hold --all --off` lifts that",
            )

    def _verbs(self) -> Iterator[Finding]:
        store, key = self._store, f"{PROBE_PREFIX}{uuid.uuid4().hex}-doctor"
        begun: list[str] = []

        def uploads() -> None:
            begun.append(store.begin_upload(key))
            part = store.upload_part(key, begun[0], 1, _BODY)
            store.complete_upload(key, begun[0], [part])

        def parts() -> None:
            begun.append(store.begin_upload(key))
            store.upload_part(key, begun[-1], 1, _BODY)
            if len(store.list_parts(key, begun[-1])) != 1:
                raise StoreUnavailable("a part that was sent isn't listed")

        def listed() -> None:
            if not any(each.key == key for each in store.list(key).objects):
                raise StoreUnavailable("an object that was put isn't listed")

        def read() -> None:
            size_bytes = store.head(key).size_bytes
            if (size_bytes, store.get(key, ByteRange(2, 5))[0]) != (len(_BODY), _BODY[2:5]):
                raise StoreUnavailable("what was put isn't what is read")

        def deleted() -> None:
            kept = store.delete([key])
            if kept:
                raise AccessDenied(f"{kept[0].key} wasn't deleted: {kept[0].reason}")

        verbs: dict[str, Callable[[], object]] = {
            "put": lambda: store.put(key, _BODY),
            "head and get": read,
            "list": listed,
            "uploads": uploads,
            "list parts": parts,
            "list uploads": lambda: store.list_uploads(key),
            "abort": lambda: store.abort_upload(key, begun[-1]),
            "delete": deleted,
        }
        for verb, call in verbs.items():
            try:
                call()
            except Unsupported as error:
                yield warning(f"store {verb}", error.message, error.hint)
            except OffloaderError as error:
                yield problem(f"store {verb}", error, _hint(verb, error))
            except IndexError:
                continue  # nothing was begun that could be aborted
            else:
                yield fine(f"store {verb}", "allowed")
        with contextlib.suppress(OffloaderError):
            store.delete([key])

    def _promises(self) -> Iterator[Finding]:
        name, found = "store conditional puts", probe_conditional_puts(self._store)
        broken = f"not kept: {'; '.join(found.problems)}"
        if found.conditional:
            yield fine(name, f"kept, also when creators met {found.rounds} times")
        elif self._settings.store.single_writer:
            yield warning(name, broken, "store.single_writer is set: nobody else may write there")
        else:
            hint = "use another store, or set store.single_writer where nobody else ever writes"
            yield problem(name, Unsupported(broken), hint)

    def _time(self) -> Iterator[Finding]:
        limit_s = self._settings.manifest.clock_skew_seconds_max
        time_for_deletion_ms(self._store, self._clock, skew_ms_max=limit_s * 1000)
        yield fine("store clock", f"within {limit_s:g} s of this machine's")


def _hint(verb: str, error: OffloaderError) -> str:
    return f"allow {_PERMISSIONS[verb]}" if isinstance(error, AccessDenied) and not error.hint else error.hint
