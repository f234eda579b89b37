"""Topics' names and times as people write them, wherever Python, the command line, HTTP or Spark takes one."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI

import offloader
from formats.entries import Entry, Position
from formats.keys import data_key
from formats.metadata.messages import OffloadContext
from offloader.cli.tree import leaves
from offloader.errors import InvalidCallError
from offloader.groups.reader_groups import GroupConfig
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.library import Store
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import list_streams
from offloader.read.partitions import open_reader
from offloader.retention.cuts import StreamCut, partition_segment
from offloader.runtime.clock import SystemClock
from offloader.service.http.routes import stream_routes
from offloader.spark.options import SourceOptions
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.times import moment_ms
from offloader.write.upload import SourceLedger
from tests.cli.reading_verbs import Offloader
from tests.groups.bookkept_groups import open_bookkept_groups
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S

TOPIC, STREAM = "persistent://shop/eu/orders", "shop/eu/persistent/orders"
PARTITIONS = [f"{STREAM}-partition-{number}" for number in (0, 1)]
NEW_TOPIC, NEW = "persistent://shop/eu/new", "shop/eu/persistent/new"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    found = open_store(f"file://{tmp_path}/store", create=True)
    for number, stream in enumerate(PARTITIONS):
        StreamWriter(found, stream).add([batch_of(3 + number, 0, 10)], closes=[3 + number])
    return found


# -- names in Python


def _read(store: ObjectStore, _: Path) -> object:
    with Store(store).stream(TOPIC).open_reader() as reader:
        return reader.count()


def _written(store: ObjectStore, folder: Path) -> object:
    with closing(Store(store).stream(NEW_TOPIC).open_ledger(str(folder / "new.db"))) as ledger:
        ledger.append(b"x")
        ledger.offload(timeout_s=PATIENCE_S)
    with open_reader(store, NEW) as reader:
        return reader.count() * 20


def _written_to_partitions(store: ObjectStore, folder: Path) -> object:
    with Store(store).stream(NEW_TOPIC).open_partitions(str(folder / "new.db"), 2) as ledger:
        ledger.append_batch([b"x"] * 20, [f"key {number}" for number in range(20)])
        ledger.offload(timeout_s=PATIENCE_S)
    return Store(store).stream(NEW).scan().count()


def _released(store: ObjectStore) -> bool:
    return Store(store).stream(TOPIC).release_hold()


def _undone(store: ObjectStore, _: Path) -> object:
    with pytest.raises(InvalidCallError, match=f"{STREAM}-partition-0: nothing is retired"):
        Store(store).stream(TOPIC).undo()
    return 20


def _exported(store: ObjectStore, folder: Path) -> object:
    return 10 * len(Store(store).stream(TOPIC).export.parquet(f"file://{folder}/files"))


def _followed(store: ObjectStore, _: Path) -> object:
    stopping, found = threading.Event(), 0
    for _name, batch in Store(store).stream(TOPIC).follow(stopping=stopping):
        found += len(batch)
        if found == 20:
            stopping.set()
    return found


def _orphans(store: ObjectStore, _: Path) -> object:
    keys = {data_key(each, UUID(int=7)) for each in PARTITIONS}
    for key in keys:
        store.put(key, b"left behind")
    return 10 * len(keys & {each.key for each in Store(store).stream(TOPIC).orphans()})


#: Method of ``Stream`` -> 20, the entries of both partitions, for the topic's name.
FUNCTIONS: Mapping[str, Callable[[ObjectStore, Path], object]] = {
    "open_reader": _read,
    "scan": lambda store, _: Store(store).stream(TOPIC).scan().count(),
    "segments": lambda store, _: sum(each.content.entries for each in Store(store).stream(TOPIC).segments()),
    "verify": lambda store, _: 20 + len(list(Store(store).stream(TOPIC).verify())),
    "partitions": lambda store, _: 10 * len(Store(store).stream(TOPIC).partitions()),
    "retention": lambda store, _: 10 * len(Store(store).stream(TOPIC).retention().scope().partitions),
    "open_ledger": _written,
    "open_partitions": _written_to_partitions,
    "pause": lambda store, _: 20 * Store(store).stream(TOPIC).pause(),
    "resume": lambda store, _: 20 * (Store(store).stream(TOPIC).pause() and Store(store).stream(TOPIC).resume()),
    "compact": lambda store, _: 20 + Store(store).stream(TOPIC).compact(),
    "cleanup": lambda store, _: 10 * len(Store(store).stream(TOPIC).cleanup()),
    "undo": _undone,
    "hold": lambda store, _: 20 * Store(store).stream(TOPIC).hold(),
    "release_hold": lambda store, _: 20 * (Store(store).stream(TOPIC).hold() and _released(store)),
    "delete": lambda store, _: 10 * len(Store(store).stream(TOPIC).delete()),
    "export": _exported,
    "follow": _followed,
    "status": lambda store, _: 10 * len(Store(store).stream(TOPIC).status()),
    "manifest": lambda store, _: 10 * len(Store(store).stream(TOPIC).manifest.show()),
    "plan_retention": lambda store, _: 10 * len(Store(store).stream(TOPIC).plan_retention().tail.offsets),
    "run_retention": lambda store, _: 10 * len(Store(store).stream(TOPIC).run_retention().tail.offsets),
    "explain_retention": lambda store, _: 20 * (STREAM in Store(store).stream(TOPIC).explain_retention()),
    "deletions": lambda store, _: 20 + len(list(Store(store).stream(TOPIC).deletions())),
    "orphans": _orphans,
    "undo_import": lambda store, _: 20 + Store(store).stream(TOPIC).undo_import(),
}
#: Methods that take a position, which is of a single stream.
OF_ONE_STREAM = {"read", "offload", "truncate", "set_source", "accept_loss"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_stream_of_a_topics_name_has_all_partitions(store: ObjectStore, tmp_path: Path, name: str) -> None:
    assert FUNCTIONS[name](store, tmp_path) == 20


#: Methods that take a stream's name, tested below.
METHODS = {
    "SegmentRecord": {"object_keys"},  # of stored names
    "Garbage": {"of"},
    "LedgerOffloader": {
        *("streaming_offload", "offload", "read_offloaded", "delete_offloaded"),
        *("offload_stream", "offload_ledgers", "offload_closed_ledgers"),
    },
}
#: These take one in Spark, tested in tests/spark/test_options_names.py by the option `stream`.
SPARK_FUNCTIONS = {"entries", "messages"}


def test_every_public_way_to_name_a_stream_is_tested() -> None:
    def takes(of: object) -> bool:
        return callable(of) and "stream" in inspect.signature(of).parameters

    found = {name: getattr(offloader, name) for name in offloader.__all__}
    assert not {name for name, value in found.items() if inspect.isfunction(value) and takes(value)}
    methods_of_stream = {name for name in vars(offloader.Stream) if not name.startswith("_")}
    assert methods_of_stream - OF_ONE_STREAM == set(FUNCTIONS)
    classes = {name: value for name, value in found.items() if inspect.isclass(value)}
    methods = {
        name: {each for each, method in inspect.getmembers(value) if not each.startswith("_") and takes(method)}
        for name, value in classes.items()
    }
    assert {name: each for name, each in methods.items() if each} == METHODS
    spark = {name for name in offloader.spark.__all__ if takes(getattr(offloader.spark, name))}
    assert spark == SPARK_FUNCTIONS


@pytest.mark.slow
def test_offloads_of_a_topics_ledgers_are_below_its_streams_name(store: ObjectStore, tmp_path: Path) -> None:
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as database:
        source = database.open_stream(NEW)
        made = offloader.LedgerOffloader(store, offloader.Settings())
        try:
            source.append([b"a"], [1])
            streamed = made.offload_stream(source, NEW_TOPIC)
            streamed.offload(timeout_s=PATIENCE_S)
            streamed.stop()
            source.append([b"b"], [2])
            source.close_ledger()
            assert made.offload_ledgers(source, NEW_TOPIC) is not None
            made.offload_closed_ledgers(source, NEW_TOPIC).stop()
            one, other = UUID(int=7), UUID(int=8)
            handle = made.streaming_offload(one, {}, stream=NEW_TOPIC)
            assert handle.offer_entry(Entry(1, 0, b"a"))
            handle.close()
            handle.get_offload_result_async().result(PATIENCE_S)
            ledger = SourceLedger(source, next(each for each in source.ledgers() if each.closed))
            made.offload(ledger, other, {}, stream=NEW_TOPIC).result(PATIENCE_S)
            context, number = OffloadContext(uuid=other, complete=True), ledger.info.ledger_id
            assert made.read_offloaded(number, context, {}, stream=NEW_TOPIC).read(0, 0).first == Position(number, 0)
            keys = [data_key(NEW, one), data_key(NEW, other, number)]
            assert [store.head(key).key for key in keys] == keys
            made.delete_offloaded(one, {}, stream=NEW_TOPIC).result(PATIENCE_S)
            made.delete_offloaded(other, {}, number, stream=NEW_TOPIC).result(PATIENCE_S)
            assert not {info.key for info in store.list("").objects} & set(keys)
        finally:
            made.close()
    assert set(list_streams(store)) == {NEW, *PARTITIONS}
    with open_reader(store, NEW) as reader:
        assert [entry.payload for batch in reader.scan() for entry in batch.entries()] == [b"a", b"b"]


@pytest.mark.slow
def test_managed_ledger_isnt_created_over_a_topics_partitions(store: ObjectStore, tmp_path: Path) -> None:
    """A stream of the topic's name would come before them for every reader."""
    for name in (TOPIC, STREAM):
        with pytest.raises(InvalidCallError, match="a topic of that name has 2 partitions") as caught:
            open_managed_ledger(name, ledgers=str(tmp_path / "ledgers.db"), store=store)
        assert PARTITIONS[0] in caught.value.hint
    assert list(list_streams(store)) == PARTITIONS
    ledgers = str(tmp_path / "ledgers.db")
    open_managed_ledger(f"{TOPIC}-partition-2", ledgers=ledgers, store=store).close()
    # Of a stream that exists, its partitions don't matter.
    StreamWriter(store, STREAM).add([batch_of(3, 0, 1)])
    open_managed_ledger(STREAM, ledgers=ledgers, store=store).close()


def test_reader_group_reads_topics(store: ObjectStore) -> None:
    groups, start = open_bookkept_groups(store), StreamCut({partition_segment(0): Position(3, 4)})
    made = groups.create("team", GroupConfig([TOPIC], starts={TOPIC: start}))
    assert tuple(made.group.streams) == (STREAM,)
    groups.add_reader("team", "one")
    groups.initiate_checkpoint("team", "first")
    groups.reach_checkpoint("team", "first", "one", {TOPIC: start})
    (checkpoint,) = groups.get("team").checkpoints
    assert [row.stream for row in checkpoint.cuts] == [STREAM]


# -- times


#: A time, and how long before now it is; the same moment in milliseconds where it isn't relative.
FORMS: Mapping[str, int | None] = {
    "2013-07-04": 1_372_896_000_000,
    "2013-07-04T12:00:00Z": 1_372_939_200_000,
    "2013-07-04T14:00:00+02:00": 1_372_939_200_000,
    "1372939200000": 1_372_939_200_000,
    "-1h": None,
    "-30m": None,
    "-1d": None,
}


def options_with_times() -> Iterator[tuple[str, str]]:
    """Verb and option of every time on the command line; whose names or metavars say so."""
    for words, place in leaves():
        module, _, function = place.partition(":")
        run = getattr(import_module(f"offloader.cli.{module}"), function)
        for name, parameter in inspect.signature(run, eval_str=True).parameters.items():
            metavars = [getattr(each, "metavar", None) for each in getattr(parameter.annotation, "__metadata__", ())]
            if "TIME" in metavars or {"time", "date", "since", "ago"} & set(name.split("_")):
                yield words, name


#: ``demo --time-field`` names a field of the input.
TIMES = {
    ("read", "since"): ["read", STREAM, "--count"],
    ("read", "until"): ["read", STREAM, "--count"],
    ("stream truncate", "before_time"): ["stream", "truncate", STREAM],
    ("export pulsar", "since"): ["export", "pulsar", STREAM, "--dest", NEW_TOPIC],
    ("export pulsar", "until"): ["export", "pulsar", STREAM, "--dest", NEW_TOPIC],
    ("export parquet", "since"): ["export", "parquet", STREAM, "--dest", "memory://exported", "--dry-run"],
    ("export parquet", "until"): ["export", "parquet", STREAM, "--dest", "memory://exported", "--dry-run"],
}


def test_every_option_that_takes_a_time_is_tested() -> None:
    assert set(options_with_times()) == {*TIMES, ("demo", "time_field")}


@pytest.mark.slow
@pytest.mark.parametrize("form", [*FORMS, "1h", "yesterday"])
@pytest.mark.parametrize(("verb", "name"), TIMES)
def test_option_takes_every_form_of_a_time(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, verb: str, name: str, form: str
) -> None:
    option = f"--{name.replace('_', '-')}"
    done = Offloader(capsys)(*TIMES[verb, name], option, form, "--store", store.url)
    said = f"{option}: {form!r} is not a time" in done.err
    assert said is (form not in FORMS)
    if verb == "export pulsar" and form in FORMS:
        assert "no Pulsar cluster was given" in done.err
    else:
        assert done.code == (0 if form in FORMS else 2), done.err


@pytest.mark.slow
def test_http_queries_and_spark_options_with_times_are_the_ones_tested() -> None:
    """tests/service/http/test_routes_entry_pages.py and tests/spark/test_options_names.py have their forms."""
    application = FastAPI()
    application.include_router(stream_routes(None))  # type: ignore[arg-type]
    operations = [each for path in application.openapi()["paths"].values() for each in path.values()]
    queries = {given["name"] for each in operations for given in each.get("parameters", ())}
    assert {"since", "until"} <= set(queries)
    options = {each.metadata["option"] for each in _fields()}
    assert {"since", "until"} <= options
    assert not {name for name in options if "time" in name.lower()}


def _fields() -> Any:
    return [each for each in SourceOptions.__dataclass_fields__.values() if "option" in each.metadata]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_python_takes_every_form_of_a_time(store: ObjectStore, form: str) -> None:
    before_ms = SystemClock().now_ms()
    found = moment_ms(form, what="publish time")
    assert found == FORMS[form] if FORMS[form] is not None else before_ms - found <= 86_400_000
    with open_reader(store, PARTITIONS[0]) as reader:
        assert (
            sum(len(batch) for batch in reader.scan_published(form))
            + sum(len(batch) for batch in reader.scan_published(None, form))
            == reader.count()
        )
    later, earlier = (
        Store(store).stream(TOPIC).scan(since=form).to_table(),
        Store(store).stream(TOPIC).scan(until=form).to_table(),
    )
    assert later.num_rows + earlier.num_rows == 20
