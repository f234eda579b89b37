"""Arrow Flight: actions, the fields of what is sent and of what is answered, the columns of entries."""

from __future__ import annotations

import ast
import inspect
import json
import tempfile
import textwrap
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from offloader.service.auth import OPERATION_OF_ACTION
from offloader.service.flight import messages
from offloader.service.providers import flight
from offloader.service.providers.flight import ACTIONS
from offloader.store.open import open_store
from tests.contracts.shapes import shape_lines
from tests.support.flight_door import APPEND_SCHEMA, flight_door

__all__ = ["flight_messages"]

STREAM = "shop/eu/persistent/orders"
#: Methods that take one field out of a document, and what they take.
_TAKES = {"text": "text", "whole": "number", "seconds": "seconds", "position": "position", "uuid": "uuid", "any": "any"}


def flight_messages() -> str:
    sent: dict[str, Callable[..., Any]] = {
        "descriptor": messages.put_request,
        "ticket": messages.get_request,
        "batch": messages.batch_note,
    }
    lines = ["# sent"]
    for name, read in sent.items():
        lines.append(f"{name}: {', '.join(_taken(read))}")
    lines += [f"action {name} ({OPERATION_OF_ACTION[name].who}): {', '.join(_fields_of(name))}" for name in ACTIONS]
    for mode, needed in messages._NEEDED.items():
        marked = (f"{each}{'' if each in needed else '?'}" for each in messages._KNOWN[mode])
        lines.append(f"columns of mode {mode}: {', '.join(marked)}")
    lines += ["", "# columns of entries", *(f"{each.name}: {each.type}" for each in messages.ENTRY_SCHEMA)]
    for name, values in sorted(_answers().items()):
        lines += ["", f"# answered: {name}", *shape_lines(values)]
    return "\n".join(lines) + "\n"


def _fields_of(action: str) -> Iterator[str]:
    """Fields of an action, in the order of their names, as the table has them."""
    for field, read in sorted(flight._FIELDS[action].items()):
        function, given = (read.func, read.keywords) if isinstance(read, partial) else (read, {})
        mark = "" if function.__name__ == "text" and not given else "?"
        default = f" = {given['default']!r}" if given else ""
        yield f"{field}{mark}: {_TAKES[function.__name__]}{default}"


def _taken(function: Callable[..., Any]) -> Iterator[str]:
    """Fields that a function takes out of a document, in the order of their names."""
    found = {}
    for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _TAKES:
            name, *rest = call.args
            if isinstance(name, ast.Constant):
                # Only a text without a default has to be there.
                mark = "" if call.func.attr == "text" and not rest else "?"
                default = f" = {ast.unparse(rest[0])}" if rest else ""
                field = str(name.value)
                found[field] = f"{field}{mark}: {_TAKES[call.func.attr]}{default}"
    return (text for _, text in sorted(found.items()))


def _answers() -> Mapping[str, list[dict[str, Any]]]:
    """What a process answers to a producer, to each action, and to who asks about a stream."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    found: dict[str, list[dict[str, Any]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        flight_door(store, flight__ledgers=f"sqlite:///{folder}/ledgers.db", ledgers__ledger_entries_max=5) as door,
    ):
        producer = door.put({"stream": STREAM, "mode": "append", "producer": "one"}, APPEND_SCHEMA)
        batch = pa.record_batch([pa.array([b"payload"] * 12)], schema=APPEND_SCHEMA)
        # Whether something is durable by then is a matter of time: nothing or a position.
        answer = producer.send(batch, {"sequence": 1})
        found["DoPut, to a batch of mode append"] = [{**answer, "durable": each} for each in (None, answer["taken"])]
        found["action offload"] = [door.act("offload", stream=STREAM)]
        found["action status, of a stream"] = [door.act("status", stream=STREAM)]
        found["action status, of all"] = [door.act("status")]
        producer.end()
        found["action close-ledger"] = [door.act("close-ledger", stream=STREAM)]
        found["action subscribe"] = [door.act("subscribe", stream=STREAM, subscriber="reader")]
        found["action publish"] = [door.act("publish", stream=STREAM, subscriber="reader", at="2:1")]
        found["action truncate"] = [door.act("truncate", stream=STREAM, before="2:0")]
        info = door.client().get_flight_info(fl.FlightDescriptor.for_path(STREAM))
        found["GetFlightInfo, application metadata"] = [json.loads(info.app_metadata)]
        found["GetFlightInfo, ticket"] = [json.loads(info.endpoints[0].ticket.ticket)]
        try:
            door.act("no such action")
        except fl.FlightError as error:
            found["an error, extra information"] = [json.loads(error.extra_info)]
    return found
