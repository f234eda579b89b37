"""DoPut: entries from a producer, one batch after another, each answered.

Owns the loop over a call's batches. Must never answer for a batch before what the answer says is so.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl

from offloader.errors import InvalidCall
from offloader.ledgers.pushed import PushedLedgers
from offloader.service.flight.answers import Answers
from offloader.service.flight.appended import AppendedLedgers
from offloader.service.flight.columns import pushed_batches, require_columns, sent_payloads
from offloader.service.flight.messages import Answer, BatchNote, batch_note
from offloader.service.flight.proof import Proof
from offloader.service.flight.seats import Seat
from offloader.settings import FlightSettings

__all__ = ["take_batches"]


def take_batches(
    seat: Seat, reader: fl.MetadataRecordBatchReader, writer: fl.FlightMetadataWriter, settings: FlightSettings
) -> None:
    """Takes what comes until the producer ends the call, or somebody takes its seat.

    Raises:
        InvalidCall, LimitReached: a batch is wrong; nothing of it was taken, all before it was.
        SourceMismatch: what is pushed isn't the log that is stored; nothing of the batch was taken.
        StoreUnavailable: no room for it in time.
        Closed: the seat is somebody else's. Fenced, Corrupt and others: the stream was stopped.
    """
    stream = seat.stream
    require_columns(reader.schema, stream.mode)
    source = stream.source
    if isinstance(source, AppendedLedgers):
        with Answers(writer, source, seat.trouble) as answers:
            _take_appended(seat, source, reader, answers, settings)
        return
    assert seat.proof is not None, "a seat at a pushed stream has one"
    with Answers(writer, seat.proof, seat.trouble) as answers:
        _take_pushed(seat, source, seat.proof, reader, answers, settings)


def _take_pushed(
    seat: Seat,
    source: PushedLedgers,
    proof: Proof,
    reader: fl.MetadataRecordBatchReader,
    answers: Answers,
    settings: FlightSettings,
) -> None:
    answers.write(Answer())
    for number, (data, note) in enumerate(_batches(seat, reader), 1):
        batches = []
        if data is not None:
            batches = pushed_batches(
                data, bytes_max=settings.batch_bytes_max, entry_bytes_max=seat.stream.entry_bytes_max
            )
            proof.compare(batches)
        pushed = source.push(batches, note.ends, within_s=settings.wait_seconds_max, is_wanted=lambda: seat.is_held)
        seat.require_held()
        answers.write(Answer(batch=number, entries=pushed.taken, repeated=pushed.repeated))


def _take_appended(
    seat: Seat,
    source: AppendedLedgers,
    reader: fl.MetadataRecordBatchReader,
    answers: Answers,
    settings: FlightSettings,
) -> None:
    answers.write(Answer(sequence=source.sequence(seat.producer)))
    for number, (data, note) in enumerate(_batches(seat, reader), 1):
        if data is None:
            continue
        payloads, times_ms = sent_payloads(
            data, bytes_max=settings.batch_bytes_max, entry_bytes_max=seat.stream.entry_bytes_max
        )
        written = source.append(payloads, times_ms, producer=seat.producer, sequence=note.sequence)
        entries = sum(map(len, written))
        answers.write(
            Answer(
                batch=number,
                entries=entries,
                repeated=len(data) - entries,
                positions=tuple((each.first, each.last) for each in written),
                sequence=source.sequence(seat.producer),
            )
        )


def _batches(seat: Seat, reader: fl.MetadataRecordBatchReader) -> Iterator[tuple[pa.RecordBatch | None, BatchNote]]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except OSError as error:  # what Arrow calls bytes that are no message of its own
            raise InvalidCall(f"a batch can't be read: {str(error)[:200]}", hint="send Arrow's own messages") from error
        seat.require_held()
        metadata = None if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
        yield chunk.data, batch_note(metadata, seat.stream.mode)
