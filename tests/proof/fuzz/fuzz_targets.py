"""Everything that takes bytes from strangers, by name."""

from __future__ import annotations

from tests.proof.fuzz import (
    fuzz_answers,
    fuzz_documents,
    fuzz_flight,
    fuzz_frames,
    fuzz_http,
    fuzz_messages,
    fuzz_objects,
    fuzz_texts,
)

TARGETS = {
    target.name: target
    for room in (
        *(fuzz_objects, fuzz_frames, fuzz_messages, fuzz_documents, fuzz_texts),
        *(fuzz_answers, fuzz_http, fuzz_flight),
    )
    for target in room.TARGETS
}
