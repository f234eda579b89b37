"""Which streams a job works on, and which options of the data source it takes.

Owns the refusal of options that would mean nothing to a job. Must never load a manifest twice for one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from offloader.errors import InvalidCall
from offloader.manifest.state import ManifestState
from offloader.spark.options import SourceOptions
from offloader.spark.planning import pinned_states

__all__ = ["PLACE_OPTIONS", "STORE_OPTIONS", "pinned_streams", "require_known"]

#: Options that say where the store is and how to get at it; every job takes them.
STORE_OPTIONS = ("store", "endpointUrl", "region", "accessKey", "secretKey", "sessionToken")
#: And how streams are read there.
PLACE_OPTIONS = (*STORE_OPTIONS, "relocate", "splitBytes", "leaseSeconds")


def require_known(options: Mapping[str, str], known: Iterable[str], *, job: str) -> None:
    """Refuses options of the data source that the job decides by itself, or has no use for.

    Raises:
        InvalidCall: names them, and the ones there are.
    """
    names = {name.lower() for name in known}
    wrong = sorted(name for name in options if name.lower() not in names)
    if wrong:
        raise InvalidCall(f"{job} takes no option {', '.join(wrong)}", hint=f"options: {', '.join(known)}")


def pinned_streams(streams: Sequence[str], options: Mapping[str, str]) -> list[tuple[ManifestState, SourceOptions]]:
    """One view of the manifest of each stream that ``streams`` names, and the options to read it with.

    Args:
        streams: names or patterns, as the option ``stream`` takes them; a stream that several of them name is one.
        options: of the data source, without ``stream``.

    Raises:
        InvalidCall: no stream is named.
        NotFound: one of them isn't there, or no stream fits a pattern.
    """
    if isinstance(streams, str) or not streams:
        raise InvalidCall("the streams are a list of names or patterns", hint='for example ["public/default/*"]')
    found: dict[str, tuple[ManifestState, SourceOptions]] = {}
    for name in streams:
        read = SourceOptions.of({**options, "stream": name})
        for state in pinned_states(read, (), read.open_store()):
            found.setdefault(state.stream, (state, read))
    return list(found.values())
