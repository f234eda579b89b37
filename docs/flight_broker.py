"""A broker in 60 lines: it pushes its entries through Arrow Flight, and deletes its own copy of what is durable."""

import json

import pyarrow as pa
import pyarrow.flight as flight

TIME = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema({"ledger_id": pa.int64(), "entry_id": pa.int64(), "publish_time": TIME, "payload": pa.binary()})


class Broker:
    """One stream. Its ledgers are lists of (time in ms, payload); the newest one is open."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.ledgers: dict[int, list[tuple[int, bytes]]] = {1: []}
        self.taken = self.durable = (-1, -1)

    def publish(self, time_ms: int, payload: bytes) -> None:
        self.ledgers[max(self.ledgers)].append((time_ms, payload))

    def close_ledger(self) -> None:
        self.ledgers[max(self.ledgers) + 1] = []

    def run(self, client: flight.FlightClient, wanted: tuple[int, int], entries: int = 1000) -> None:
        """Pushes until ``wanted`` is durable. When it breaks off: call it again."""
        command = json.dumps({"stream": self.stream, "producer": "example"}).encode()
        writer, answers = client.do_put(flight.FlightDescriptor.for_command(command), SCHEMA)
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
        self.taken, self.durable = position(answer["taken"]), position(answer["durable"])
        for ledger_id in [each for each in self.ledgers if each < self.durable[0]]:
            del self.ledgers[ledger_id]  # all of it is in the cold tier

    def next_batch(self, count: int) -> tuple[pa.RecordBatch, dict[int, int]]:
        """The entries after what is taken, of one ledger; and how the ledgers up to it end."""
        ledger_id, first = self.taken[0], self.taken[1] + 1
        if first >= len(self.ledgers.get(ledger_id, [])):
            ledger_id, first = min((each for each in self.ledgers if each > ledger_id), default=ledger_id), 0
        rows = self.ledgers.get(ledger_id, [])[first : first + count]
        ids = {"ledger_id": [ledger_id] * len(rows), "entry_id": list(range(first, first + len(rows)))}
        told = {"publish_time": [time_ms for time_ms, _ in rows], "payload": [payload for _, payload in rows]}
        closed = {each: len(held) - 1 for each, held in self.ledgers.items() if held and each < ledger_id}
        return pa.RecordBatch.from_pydict({**ids, **told}, schema=SCHEMA), closed


def position(text: str | None) -> tuple[int, int]:
    return (int(text.partition(":")[0]), int(text.partition(":")[2])) if text else (-1, -1)
