"""A broker in 60 lines: it pushes its entries through Arrow Flight, and deletes its own copy of what is durable."""

import json
import uuid
import zlib

import pyarrow as pa
import pyarrow.flight as flight

NEWS, TIME = ("taken", "durable"), pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema({"ledger_id": pa.int64(), "entry_id": pa.int64(), "publish_time": TIME, "payload": pa.binary()})


class Broker:
    """One stream. Its ledgers are lists of (time in ms, payload); the newest one is open. ``log`` is kept with them."""

    def __init__(self, stream: str) -> None:
        self.log: dict[str, object] = {"stream": stream, "producer": "example", "source": str(uuid.uuid4())}
        self.ledgers: dict[int, list[tuple[int, bytes]]] = {1: []}
        self.taken: tuple[int, ...] = (-1, -1)
        self.durable: tuple[int, ...] = (-1, -1)

    def publish(self, time_ms: int, payload: bytes) -> None:
        self.ledgers[max(self.ledgers)].append((time_ms, payload))

    def close_ledger(self) -> None:
        self.ledgers[max(self.ledgers) + 1] = []

    def run(self, client: flight.FlightClient, wanted: tuple[int, ...], entries: int = 1000) -> None:
        """Pushes until ``wanted`` is durable. When it breaks off: call it again."""
        writer, answers = client.do_put(flight.FlightDescriptor.for_command(json.dumps(self.log)), SCHEMA)
        with writer:
            self.hear(answers)  # where to go on
            while self.durable < wanted:
                batch, closed = self.next_batch(entries)
                if batch.num_rows:
                    writer.write_with_metadata(batch, json.dumps({"closed": closed}).encode())
                self.hear(answers)  # the answer to the batch, or news

    def hear(self, answers: flight.FlightMetadataReader) -> None:
        said = answers.read()
        answer = json.loads(said.to_pybytes()) if said else {"error": "the call has ended"}
        if "error" in answer:
            raise ConnectionError(answer["error"])
        self.taken, self.durable = (tuple(map(int, (answer[each] or "-1:-1").split(":"))) for each in NEWS)
        ledger_id, entry_id = self.durable
        if ledger_id in self.ledgers:  # the next call shows with it that this is still the same log
            self.log |= {"last": answer["durable"], "crc32": zlib.crc32(self.ledgers[ledger_id][entry_id][1])}
        self.ledgers = {each: held for each, held in self.ledgers.items() if each >= ledger_id}  # older: durable

    def next_batch(self, count: int) -> tuple[pa.RecordBatch, dict[int, int]]:
        """The entries after what is taken, of one ledger; and how the ledgers up to it end."""
        ledger_id, first = self.taken[0], self.taken[1] + 1
        if first >= len(self.ledgers.get(ledger_id, [])):
            ledger_id, first = min((each for each in self.ledgers if each > ledger_id), default=ledger_id), 0
        rows = self.ledgers.get(ledger_id, [])[first : first + count]
        ids = {"ledger_id": [ledger_id] * len(rows), "entry_id": list(range(first, first + len(rows)))}
        told = {"publish_time": [each[0] for each in rows], "payload": [each[1] for each in rows]}
        closed = {each: len(held) - 1 for each, held in self.ledgers.items() if held and each < ledger_id}
        return pa.RecordBatch.from_pydict({**ids, **told}, schema=SCHEMA), closed
