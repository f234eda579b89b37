"""Where the demo keeps its data, and what it remembers there.

Owns the names under the demo's directory, the record of which input was imported how far, and cleaning up. Must
never delete what isn't the demo's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from formats.keys import catalog_key, stream_prefix
from offloader.demo.input import InputSummary
from offloader.errors import AccessDenied, Corrupt, InvalidCall, NotFound, StoreUnavailable
from offloader.ledgers.embedded import EmbeddedLedgers
from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore

__all__ = ["CLEAN_HINT", "STREAM", "DemoPlace", "Imported", "check_fits", "clean", "notes_after", "require_usable"]

#: The one stream that the demo writes.
STREAM = "public/default/persistent/demo"
CLEAN_HINT = "give --clean to remove the earlier run's data first, or --dir for another directory"

_NOTE_INPUT = "demo.input"
_NOTE_EVENTS = "demo.events"


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """Everything lies under ``directory``, but for objects when the store is elsewhere.

    Each store has ledgers of its own, so that the demo can be tried against several.
    """

    directory: Path
    store_url: str
    endpoint_url: str = ""

    @classmethod
    def at(cls, directory: str, store_url: str = "", endpoint_url: str = "") -> DemoPlace:
        """``store_url`` empty: the directory ``store`` in ``directory``."""
        root = Path(directory)
        return cls(root, store_url or (root / "store").absolute().as_uri(), endpoint_url)

    @property
    def is_default_store(self) -> bool:
        return self.store_url == (self.directory / "store").absolute().as_uri()

    @property
    def _suffix(self) -> str:
        if self.is_default_store:
            return ""
        short = re.sub(r"[^A-Za-z0-9]+", "-", self.store_url).strip("-")[:40]
        return f"-{short}-{hashlib.sha256(f'{self.store_url} {self.endpoint_url}'.encode()).hexdigest()[:8]}"

    @property
    def ledgers_path(self) -> Path:
        return self.directory / f"ledgers{self._suffix}.db"

    @property
    def picture_path(self) -> Path:
        return self.directory / f"picture{self._suffix}.png"


@dataclass(frozen=True, slots=True)
class Imported:
    """What the ledgers hold of which input: nothing before the first run."""

    input_sha256: str = ""
    input_name: str = ""
    events: int = 0

    @classmethod
    def read(cls, place: DemoPlace) -> Imported:
        """From the ledgers' notes; disturbs no run that is under way.

        Raises:
            Corrupt: the notes aren't the demo's.
        """
        try:
            ledgers = EmbeddedLedgers(str(place.ledgers_path), create=False)
        except NotFound:
            return cls()
        try:
            view = ledgers.view_stream(STREAM)
            note, events = view.get_note(_NOTE_INPUT), view.get_note(_NOTE_EVENTS)
        except NotFound:
            return cls()
        finally:
            ledgers.close()
        if note is None or events is None:
            return cls()
        try:
            recorded = json.loads(note)
            return cls(recorded["sha256"], recorded["name"], int(events))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{place.ledgers_path}: the demo's notes can't be read", hint=CLEAN_HINT) from error


def require_usable(place: DemoPlace) -> None:
    """Raises ``AccessDenied`` when nothing can be written under the demo's directory; makes nothing."""
    nearest = place.directory.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "may not be written to" if nearest.is_dir() else "is not a directory"
        raise AccessDenied(
            f"the demo's directory {place.directory} can't be used: {nearest} {why}", hint="name another one with --dir"
        )


def notes_after(summary: InputSummary, events: int) -> Mapping[str, bytes]:
    """The notes to be set in the transaction that appends up to event ``events`` of the input."""
    return {_NOTE_INPUT: json.dumps(asdict(summary)).encode(), _NOTE_EVENTS: b"%d" % events}


def check_fits(place: DemoPlace, store: ObjectStore, summary: InputSummary) -> Imported:
    """How far this input was imported here before.

    Raises:
        InvalidCall: another input's data is here; nothing was changed.
    """
    imported = Imported.read(place)
    if imported.events and imported.input_sha256 != summary.sha256:
        raise InvalidCall(
            f"{place.ledgers_path} holds {imported.events:,} events of {imported.input_name}, "
            f"and {summary.name} is another input",
            hint=CLEAN_HINT,
        )
    if imported.events == 0:
        try:
            held = load_manifest(store, STREAM).committed_end()
        except NotFound:
            held = None
        if held is not None:
            raise InvalidCall(
                f"{store.url} holds stream {STREAM} up to {held}, and {place.ledgers_path} knows nothing of it",
                hint=CLEAN_HINT,
            )
    return imported


def clean(place: DemoPlace, store: ObjectStore) -> int:
    """Removes the demo's stream from the store, and its ledgers and picture.

    Returns:
        How many objects were removed.

    Raises:
        StoreUnavailable: the store kept some.
        AccessDenied: files that can't be removed.
    """
    prefix = stream_prefix(STREAM)
    removed = 0
    # the entry that makes it a stream goes last: an interrupted clean can be given again
    for keys in (prefix, catalog_key(STREAM)):
        removed += _delete_all(store, keys)
    for upload in store.list_uploads(prefix):
        store.abort_upload(upload.key, upload.upload_id)
    try:
        for path in (place.ledgers_path, place.picture_path):
            for suffix in ("-wal", "-shm", ".acked", ""):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise AccessDenied(f"{place.directory}: can't remove {path.name}: {error.strerror or error}") from error
    return removed


def _delete_all(store: ObjectStore, prefix: str) -> int:
    removed, after = 0, ""
    while True:
        page = store.list(prefix, after=after)
        keys = [info.key for info in page.objects]
        failures = store.delete(keys) if keys else []
        if failures:
            raise StoreUnavailable(
                f"{store.url}: {len(failures)} of {len(keys)} objects weren't deleted; "
                f"{failures[0].key}: {failures[0].reason}",
                hint="give the same command again",
            )
        removed += len(keys)
        if page.next_after is None:
            return removed
        after = page.next_after
