"""Start-up check that the store honours conditional puts, on which writers rely.

The probe removes its scratch keys if it is permitted to: a writer needs no delete permission.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from offloader.errors import AccessDeniedError, InvalidCallError, OffloaderError, UnsupportedError
from offloader.parallel_map import at_once
from offloader.runtime.clock import SystemClock
from offloader.store.base import CREATE, OVERWRITE, PROBE_PREFIX, Adjustable, IfMatch, ObjectStore, is_local, put_if
from offloader.store.wrappers import AttemptStore, layer_of

#: Number of creates, and of puts with a stale ETag, that must be refused. A store that ignores one condition in twenty
#: passes with probability 0.95 ** 135, one in a thousand; one that ignores creates only, 0.95 ** 90, one in a hundred.
CREATES, ETAGS = 90, 45
#: Keys probed in parallel; both numbers are multiples of it. Each uses a separate connection, to reach several servers
#: behind a load balancer.
_ASKED_AT_ONCE = 15
#: Age at which the note of a passed probe expires.
NOTE_MS_MAX = 24 * 3_600_000
_RACERS = 2
_Ask = Callable[[ObjectStore, str], list[str]]
_BARRIER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Result of a probe: races of two creators, and one line for each violation of a condition."""

    rounds: int
    problems: Sequence[str]

    @property
    def conditional(self) -> bool:
        """Whether conditional puts are reliable."""
        return not self.problems


def require_conditional_puts(
    store: ObjectStore, *, single_writer: bool = False, rounds: int = 4, notes: Path | None = None
) -> ProbeResult:
    """Probe ``store`` and refuse it for writing if two writers can win.

    The first probe of an opened store takes about 200 requests, later ones and those of local stores about 20.

    Args:
        store: opened for writing.
        single_writer: accept such a store, because the operator guarantees a single writer.
        rounds: races of two creators.
        notes: a folder of this user, for commands. A bucket with a note of less than a day gets the short probe.

    Raises:
        UnsupportedError: a condition is ignored or refused, and ``single_writer`` isn't set.
    """
    attempts = layer_of(store, AttemptStore)
    note = None if notes is None or is_local(store) else notes / _note_name(store)
    is_known = is_local(store) or (attempts is not None and attempts.keeps_conditions)
    is_known = is_known or (note is not None and _is_recent(note))
    result = probe_conditional_puts(store, rounds=rounds, thorough=not is_known)
    if result.problems and not single_writer:
        raise UnsupportedError(
            f"{store.url} can't be written safely: {'; '.join(result.problems)}",
            hint="use a store with conditional puts, or set store.single_writer if no other process ever writes",
        )
    if attempts is not None:
        attempts.keeps_conditions = result.conditional
        attempts.looks_first = not result.conditional
    if result.conditional and note is not None and not is_known:
        # Without the note, the next command repeats the full probe.
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            for old in [each for each in note.parent.iterdir() if not _is_recent(each)]:
                old.unlink(missing_ok=True)
            note.touch()
    return result


def _note_name(store: ObjectStore) -> str:
    """A name for the store's server and bucket. It omits the root, which doesn't matter for conditional puts, and it
    reveals neither server nor bucket."""
    where = urlsplit(store.url)
    places = (
        f"{where.scheme}://{where.netloc}",
        *(f"{name}={value}" for name, value in sorted(store.driver_metadata.items())),
    )
    return hashlib.sha256("\n".join(places).encode()).hexdigest()


def _is_recent(note: Path) -> bool:
    """Whether the note was made within a day, by this machine's clock."""
    with contextlib.suppress(OSError):
        return 0 <= SystemClock().now_ms() - note.stat().st_mtime * 1000 < NOTE_MS_MAX
    return False


def probe_conditional_puts(store: ObjectStore, *, rounds: int = 4, thorough: bool = True) -> ProbeResult:
    """Probe scratch keys with a second create, concurrent creates, and stale, absent and current ETags; then repeat
    each condition, for stores that ignore it intermittently.

    Args:
        thorough: repeat the conditions at the end. The others as in ``require_conditional_puts``.

    Raises:
        OffloaderError: the store can't be written at all.
    """
    scratch = f"{PROBE_PREFIX}{uuid.uuid4().hex}"
    asked = [f"{scratch}-asked-{number}" for number in range(_ASKED_AT_ONCE)] if thorough else []
    # Each check uses a separate key, so that at most four requests wait for each other.
    asks = [_plain_put, *map(_tried, (_second_create, _stale_etag, _etag_of_nothing, *[_race] * rounds))]
    keys = [f"{scratch}-{number}" for number in range(len(asks))]
    try:
        looks = [partial(ask, store, key) for ask, key in zip(asks, keys, strict=True)]
        found = at_once(lambda look: look(), looks, sequential_max=len(looks) if is_local(store) else 1)
        problems = _without_repeats(problem for each in found for problem in each)
        if asked and not problems:
            problems += _again_and_again(store, asked)
    finally:
        # A failed removal leaves a few bytes under a key that nothing else uses.
        with contextlib.suppress(OffloaderError):
            store.delete([*keys, *asked])
    return ProbeResult(rounds=rounds, problems=tuple(problems))


_UNSUPPORTED = "conditional writes are not supported"


def _without_repeats(problems: Iterable[str]) -> list[str]:
    """The problems without duplicates. Problems that differ only in the refused request after the colon are equal."""
    found: dict[str, str] = {}
    for problem in problems:
        found.setdefault(problem.partition(":")[0], problem)
    return list(found.values())


def _tried(ask: _Ask) -> _Ask:
    """``ask``, with a refused condition reported as a problem. A put without a condition finds other refusals."""

    def tried(store: ObjectStore, key: str) -> list[str]:
        try:
            return ask(store, key)
        except UnsupportedError as error:
            return [f"{_UNSUPPORTED}: {error.message}"]

    return tried


def _plain_put(store: ObjectStore, key: str) -> list[str]:
    """Put without a condition. An error names the setting that the server needs, if the probe finds one."""
    adjustable = layer_of(store, Adjustable)  # type: ignore[type-abstract]  # a protocol that can be asked for
    try:
        store.put(key, b"plain")
    except InvalidCallError as error:
        checksum = "" if adjustable is None else adjustable.checksum_taken(key)
        if not checksum:
            raise
        raise UnsupportedError(
            f"{error.message}; the store accepts the request with another checksum",
            hint=f'set store.checksum = "{checksum}"',
        ) from error
    if adjustable is not None and adjustable.asks_encryption:
        _require_encryption(store, key, adjustable)
    return []


def _require_encryption(store: ObjectStore, key: str, asked: Adjustable) -> None:
    """Refuse a store that doesn't encrypt an object as configured, whether put whole or made of parts."""
    problem = asked.encryption_problem(key)
    if not problem:
        upload_id = store.begin_upload(key)
        store.complete_upload(key, upload_id, [store.upload_part(key, upload_id, 1, b"plain")])
        problem = asked.encryption_problem(key)
    if problem:
        raise UnsupportedError(
            f"{store.url}: {problem}",
            hint="use a server with this encryption, or remove store.encryption and encrypt the bucket or its disks",
        )


def finds_uploads_by_prefix(store: ObjectStore, *, entropy: Callable[[int], bytes] = os.urandom) -> bool:
    """Whether unfinished uploads are listed by prefix, or (MinIO) by the exact key only. ``entropy`` returns random
    bytes for the scratch key."""
    scratch = f"{PROBE_PREFIX}{entropy(16).hex()}"
    upload_id = store.begin_upload(f"{scratch}-upload")
    try:
        return any(upload.upload_id == upload_id for upload in store.list_uploads(scratch))
    finally:
        # A failed abort leaves an upload without parts.
        with contextlib.suppress(OffloaderError):
            store.abort_upload(f"{scratch}-upload", upload_id)


def _second_create(store: ObjectStore, key: str) -> list[str]:
    store.put(key, b"first", mode=CREATE)
    replaces = put_if(store, key, b"second", CREATE) or store.get(key)[0] != b"first"
    return ["a create replaces an existing object"] if replaces else []


def _stale_etag(store: ObjectStore, key: str) -> list[str]:
    etag = store.put(key, b"1", mode=OVERWRITE).etag
    if not put_if(store, key, b"22", IfMatch(etag)):
        return ["a put with the current ETag is refused"]
    if put_if(store, key, b"333", IfMatch(etag)):
        return ["a put with a stale ETag replaces the object"]
    return [] if store.get(key)[0] == b"22" else ["a refused put replaces the object"]


def _etag_of_nothing(store: ObjectStore, key: str) -> list[str]:
    gone = store.put(key, b"1", mode=OVERWRITE).etag
    # Without the delete permission, use another key, which has no object.
    creates = put_if(store, key if _is_deleted(store, key) else f"{key}-absent", b"22", IfMatch(gone))
    return ["a put with an ETag creates a missing object"] if creates else []


def _is_deleted(store: ObjectStore, key: str) -> bool:
    with contextlib.suppress(AccessDeniedError):
        return not store.delete([key])
    return False


def _race(store: ObjectStore, key: str) -> list[str]:
    start = threading.Barrier(_RACERS)

    def create(body: bytes) -> bool:
        start.wait(_BARRIER_TIMEOUT_S)
        return put_if(store, key, body, CREATE)

    bodies = [f"creator {number}".encode() for number in range(_RACERS)]
    with ThreadPoolExecutor(_RACERS) as threads:
        won = [body for body, wins in zip(bodies, threads.map(create, bodies), strict=True) if wins]
    if len(won) != 1:
        return [f"of {_RACERS} concurrent creates, {len(won)} were reported as successful"]
    return [] if store.get(key)[0] == won[0] else ["the object has the bytes of a refused create"]


def _again_and_again(store: ObjectStore, keys: Sequence[str]) -> list[str]:
    with ThreadPoolExecutor(len(keys)) as threads:
        found = list(threads.map(lambda key: _ignored(store, key, len(keys)), keys))
    creates, etags, changed = (sum(counts) for counts in zip(*found, strict=True))
    problems = [f"of {CREATES} creates of existing objects, {creates} replaced them"] if creates else []
    problems += [f"of {ETAGS} puts with a stale ETag, {etags} replaced the object"] if etags else []
    return problems or (["a refused put replaces the object"] if changed else [])


def _ignored(store: ObjectStore, key: str, keys: int) -> tuple[int, int, int]:
    """Count ignored creates and stale ETags of one key's share, and whether the object changed."""
    stale = store.put(key, b"first", mode=CREATE).etag
    store.put(key, b"kept")
    creates = sum(put_if(store, key, b"created", CREATE) for _ in range(CREATES // keys))
    etags = sum(put_if(store, key, b"replaced", IfMatch(stale)) for _ in range(ETAGS // keys))
    return creates, etags, store.get(key)[0] != b"kept"
