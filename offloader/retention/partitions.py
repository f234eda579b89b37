"""The partitions of a stream or topic as they are now: each one's manifest and hot tier, loaded when it is asked for.

Owns loading them and keeping what was loaded. Must never let a manifest of another incarnation stand for the place's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from offloader.errors import NotFound
from offloader.ledgers.base import LedgerSource
from offloader.manifest.load import load_manifest_view, refreshed
from offloader.manifest.state import ManifestState
from offloader.retention.at_once import at_once
from offloader.retention.own_cuts import Known, PartitionEntries
from offloader.retention.place import Place
from offloader.store.base import ObjectStore

__all__ = ["LoadedPartitions", "SourceOf"]

#: The hot tier of a stream, by its name; ``None``: not at hand, the stream then ends at its committed end.
SourceOf = Callable[[str], LedgerSource | None]


class LoadedPartitions(Mapping[int, PartitionEntries]):
    """Number -> entries of a partition. One look: each partition is loaded once.

    Args:
        store: where the manifests are.
        place: names the partitions.
        source_of: their hot tiers.
        known: where counting begins, by partition.
        views: earlier views by stream, which are brought up to date instead of loaded anew; changed in place.

    Raises:
        NotFound: (of every access) a partition's stream was deleted meanwhile.
    """

    def __init__(
        self,
        store: ObjectStore,
        place: Place,
        source_of: SourceOf,
        known: Mapping[int, Known] | None = None,
        views: dict[str, ManifestState] | None = None,
    ) -> None:
        self._store = store
        self._place = place
        self._source_of = source_of
        self._known = known or {}
        self._views = {} if views is None else views
        self._loaded: dict[int, PartitionEntries] = {}

    def __len__(self) -> int:
        return len(self._place.partitions)

    def __iter__(self) -> Iterator[int]:
        return iter(self._place.partitions)

    def __contains__(self, number: object) -> bool:
        return number in self._place.partitions

    def __getitem__(self, number: int) -> PartitionEntries:
        if number not in self._loaded:
            partition = self._place.partitions[number]
            source = self._source_of(partition.stream)
            # The hot tier first: entries leave it only after the manifest has them.
            ledgers = [] if source is None else source.ledgers()
            self._loaded[number] = PartitionEntries(self.state(number), ledgers, self._known.get(number))
        return self._loaded[number]

    def load(self, numbers: Iterable[int]) -> None:
        """Loads those of some partitions that exist and aren't loaded yet, several at once."""
        at_once(self.__getitem__, [number for number in numbers if number in self and number not in self._loaded])

    def state(self, number: int) -> ManifestState:
        """The newest view of a partition's manifest."""
        partition = self._place.partitions[number]
        view = self._views.get(partition.stream)
        if view is None or view.incarnation != partition.incarnation:
            empty = ManifestState(stream=partition.stream, incarnation=partition.incarnation)
            view = load_manifest_view(self._store, empty).state
        else:
            view = refreshed(self._store, view).state
        if view.stream_deleted:
            raise NotFound(f"stream {partition.stream} in {self._store.url} was deleted")
        self._views[partition.stream] = view
        return view
