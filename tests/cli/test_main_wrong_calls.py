"""Wrong calls of every verb: one line with the error, one with a hint, the exit code, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.cli.tree import leaves
from offloader.managed_ledger import open_managed_ledger
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.waiting import PATIENCE_S

STREAM = "public/default/persistent/orders"
NO_STREAM = "no/such/persistent/stream"
#: Verb -> what it needs behind a stream's name to be complete; ``{folder}`` holds the ledger database.
OF_A_STREAM: dict[str, tuple[str, ...]] = {
    "stream set-source": ("--ledgers", "sqlite:///nowhere/ledgers.db"),
    "stream accept-loss": ("--ledgers", "sqlite:///{folder}/l.db"),
    "stream pause": (),
    "stream resume": (),
    "ls": (),
    "read": (),
    "verify": (),
    "status": (),
    "stream delete": ("--apply",),
    "stream truncate": ("--before", "0:1", "--apply"),
    "export iceberg": (
        *("--table", "lake.entries", "--catalog", "sqlite:///{folder}/catalog.db"),
        *("--warehouse", "file://{folder}/warehouse"),
    ),
    "export pulsar": ("--dest", "persistent://a/b/c", "--service-url", "pulsar://127.0.0.1:1"),
    "retention explain": (),
    "retention plan": (),
    "retention run": (),
    "subscriber list": (),
    "subscriber add": ("who",),
    "subscriber ack": ("who", "--at", "0:1"),
    "subscriber remove": ("who",),
    "cleanup plan": (),
    "cleanup undo": (),
    "cleanup orphans": (),
    "cleanup hold": (),
    "cleanup audit": (),
    "manifest show": (),
    "manifest checkpoint": (),
    "manifest expire": (),
    "stream compact": (),
    "export parquet": ("--dest", "file://{folder}/lake"),
    "export v1": ("--dest", "file://{folder}/bucket", "--broker-record", "{folder}/record"),
}
#: Verbs without a stream, or that make one, look at a ledger database first, or need a JVM: ``tests/spark`` has those.
OTHERS = {"import", "config", "demo", "doctor", "inspect", "group", "serve", "spark"}
#: Need a ledger database, or a position as well: see below, and ``tests/cli/test_manifest.py``.
OF_ONE_LEDGER = {"cleanup run", "stream offload", "manifest context", "manifest rebuild", "subscriber accept-loss"}


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Offloader:
    for name in ("OFFLOADER_STORE", "OFFLOADER_LEDGERS", "OFFLOADER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Offloader(capsys)


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wrong-calls")
    url = f"file://{folder}/store"
    with open_managed_ledger(STREAM, ledgers=f"sqlite:///{folder}/l.db", store=open_store(url)) as topic:
        topic.append_batch([b"entry"] * 5)
        topic.offload(timeout_s=PATIENCE_S)
    return url


def make_folders(offloader: Offloader, store_url: str) -> None:
    """Those of the probe, too."""
    assert offloader("cleanup", "hold", STREAM, "--store", store_url).code == 0
    assert offloader("cleanup", "hold", STREAM, "--off", "--store", store_url).code == 0


def changes(store_url: str) -> dict[str, int]:
    # A file that is created and removed again, as the probe's are, changes the time of its folder.
    return {str(path): path.stat().st_mtime_ns for path in Path(store_url.removeprefix("file://")).rglob("*")}


def test_every_verb_is_called_wrongly_here() -> None:
    rest = {words for words, _ in leaves() if words not in OF_A_STREAM}
    assert {words for words in rest if words.split()[0] not in OTHERS} == OF_ONE_LEDGER


@pytest.mark.slow
@pytest.mark.parametrize("verb", OF_A_STREAM)
def test_a_wrong_call_of_a_verb_is_two_lines(offloader: Offloader, store_url: str, verb: str) -> None:
    words, store = verb.split(), ("--store", store_url)
    folder = Path(store_url.removeprefix("file://"))
    more = [each.format(folder=folder.parent) for each in OF_A_STREAM[verb]]
    before = sorted(str(path) for path in folder.rglob("*"))
    cases = [
        (3, "stream no/such/persistent/stream ", (*words, "no/such/persistent/stream", *more, *store)),
        (2, "no such option: --nosuch", (*words, STREAM, *more, "--nosuch", *store)),
        (2, "not a store URL", (*words, STREAM, *more, "--store", "nope")),
        (2, " store", (*words, STREAM, *more)),
        (3, "no such directory", (*words, STREAM, *more, "--store", f"file://{folder}/missing")),
    ]
    if verb != "cleanup audit":  # what was deleted from where there never was a stream
        cases.append((2, "stream name 'a//b' can't be used", (*words, "a//b", *more, *store)))
    if verb not in (
        "ls",
        "retention plan",
        "retention run",
        "cleanup plan",
        "cleanup audit",
        "cleanup hold",
        "cleanup orphans",
        "status",
    ):
        cases.append((2, "missing argument", (*words, *store)))
    for code, text, call in cases:
        found, line, hint = offloader.refuses(*call)
        assert (found, text in line) == (code, True), f"{call}: {found} {line}"
        assert hint
    assert sorted(str(path) for path in folder.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        ("cleanup", "hold"),
        ("cleanup", "hold", "--off"),
        ("cleanup", "orphans", "--apply"),
        ("cleanup", "run", "--apply"),
        ("cleanup", "undo"),
        ("manifest", "checkpoint"),
        ("manifest", "expire", "--apply"),
        ("stream", "compact", "--beside-owner"),
        ("stream", "delete", "--apply"),
        ("stream", "set-source", "--ledgers", "sqlite:///nowhere/ledgers.db"),
        ("stream", "truncate", "--apply", "--before", "0:1"),
    ],
    ids=" ".join,
)
def test_wrong_stream_name_is_refused_before_the_store_is_written(
    offloader: Offloader, store_url: str, call: tuple[str, ...]
) -> None:
    make_folders(offloader, store_url)
    before = changes(store_url)
    code, line, _ = offloader.refuses(*call, "no/such/persistent/stream", "--store", store_url)
    assert (code, line.startswith("stream no/such/persistent/stream ")) == (3, True), line
    assert changes(store_url) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("subscriber", "add", NO_STREAM, "who"), NO_STREAM),
        (("subscriber", "ack", NO_STREAM, "who", "--at", "0:1"), NO_STREAM),
        (("subscriber", "remove", NO_STREAM, "who"), NO_STREAM),
        (("subscriber", "add", STREAM, " "), "isn't a valid subscriber name"),
        (("subscriber", "add", STREAM, "who", "--start", "soon"), "--start"),
        (("subscriber", "ack", STREAM, "who", "--at", "soon"), "--at"),
        (("group", "set", "no_name", "--stream", STREAM), "is not a valid reader group name"),
        (("group", "set", "audit", "--stream", NO_STREAM), NO_STREAM),
        (("retention", "run", "--apply", NO_STREAM), NO_STREAM),
        (
            ("stream", "compact", STREAM, "--codec", "gzip"),
            "invalid value for '--codec': 'gzip' is not one of 'none', 'zstd'",
        ),
        (("manifest", "rebuild", STREAM, "--head", "soon"), "--head"),
        (("manifest", "rebuild", STREAM, "--head", "first", "--closed", "soon"), "--closed"),
        (("manifest", "rebuild", STREAM, "--head", "first", "--accept-loss", "soon"), "--accept-loss"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else None,
)
def test_wrong_value_is_refused_before_the_store_is_written(
    offloader: Offloader, store_url: str, call: tuple[str, ...], text: str
) -> None:
    make_folders(offloader, store_url)
    before = changes(store_url)
    _, line, _ = offloader.refuses(*call, "--store", store_url)
    assert text in line
    assert changes(store_url) == before


@pytest.mark.slow
def test_missing_store_directory_is_created_only_for_an_offloadable_stream(
    offloader: Offloader, store_url: str, tmp_path: Path
) -> None:
    ledgers = f"sqlite:///{store_url.removeprefix('file://')}/../l.db"
    missing = ("--store", f"file://{tmp_path}/store")
    calls = [
        (3, "no such directory", ("import",)),
        (2, "no ledger database", ("stream", "offload", STREAM)),
        (3, "doesn't exist", ("stream", "offload", STREAM, "--ledgers", f"sqlite:///{tmp_path}/l.db")),
        (3, "isn't in ledger database", ("stream", "offload", "a/b/persistent/c", "--ledgers", ledgers)),
    ]
    for code, text, call in calls:
        found, line, _ = offloader.refuses(*call, *missing)
        assert (found, text in line) == (code, True), f"{call}: {found} {line}"
        assert list(tmp_path.iterdir()) == []
    offloader("stream", "offload", STREAM, "--ledgers", ledgers, *missing)
    assert (tmp_path / "store").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", ["stream", "retention", "subscriber", "group", "cleanup", "export", "manifest", "config", "spark"]
)
def test_verb_without_an_action_is_refused_with_its_help(offloader: Offloader, verb: str) -> None:
    code, line, hint = offloader.refuses(verb)
    assert (code, hint) == (2, f"see `offloader {verb} --help`")
    assert line.startswith("missing a")
    assert len(line) < 200
    assert offloader.refuses(verb, "nosuch")[0] == 2


#: Verb with several actions -> them, in the order of the help.
ACTIONS = {
    "stream": "offload, pause, resume, compact, truncate, delete, set-source, accept-loss",
    "manifest": "show, context, rebuild, checkpoint, expire",
    "retention": "plan, run, explain",
    "subscriber": "list, add, ack, remove, accept-loss",
    "group": "list, set, join, checkpoint, publish, remove",
    "cleanup": "plan, run, undo, orphans, audit, hold",
    "export": "iceberg, parquet, pulsar, v1",
    "spark": "backfill, compact, export, rebuild, verify",
    "config": "explain, check, sample",
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ACTIONS)
def test_a_wrong_or_missing_action_is_refused_with_the_known_ones(offloader: Offloader, verb: str) -> None:
    hint = f"see `offloader {verb} --help`"
    assert offloader.refuses(verb) == (2, f"missing action. Choose from: {ACTIONS[verb]}", hint)
    expected = (2, f"no such command 'guess'. Choose from: {ACTIONS[verb]}", hint)
    assert [offloader.refuses(verb, "guess", *more) for more in ((), (STREAM,))] == [expected, expected]
    code, line, _ = offloader.refuses(verb, f"{ACTIONS[verb].split(',')[0]}s", STREAM)
    assert (code, line.endswith(f"'? Choose from: {ACTIONS[verb]}")) == (2, True)


def test_options_may_precede_the_action(offloader: Offloader, store_url: str) -> None:
    last = offloader("manifest", "show", STREAM, "--store", store_url, "--json")
    first = offloader("manifest", "--store", store_url, "--json", "show", STREAM)
    assert first == last
    assert first.code == 0
    assert offloader("config", "--changed", "explain", STREAM).code == 0
    assert offloader("--store", store_url, "--json", "manifest", "show", STREAM) == last
    assert offloader("--store", store_url, "ls", "--json").code == 0


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (("manifest", "show", STREAM, "--dry-run"), "--dry-run"),
        (("manifest", "checkpoint", STREAM, "--closed", "0:1"), "--closed"),
        (("stream", "pause", STREAM, "--dry-run"), "--dry-run"),
        (("spark", "verify", STREAM, "--table", "x"), "--table"),
        (("config", "check", "--dry-run"), "--dry-run"),
        (("config", "sample", "--changed"), "--changed"),
    ],
)
def test_an_option_of_another_action_is_refused(offloader: Offloader, call: tuple[str, ...], option: str) -> None:
    assert offloader.refuses(*call) == (
        2,
        f"no such option: {option}",
        f"see `offloader {call[0]} {call[1]} --help`",
    )


#: More digits than Python makes a number of.
DIGITS = "9" * 5000
HALF_PAIR = "a/\ud800"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "code", "text"),
    [
        (("stream", "truncate", "--apply", STREAM, "--before", f"{DIGITS}=0:1"), 2, "isn't a partition number"),
        (("subscriber", "ack", STREAM, "who", "--at", f"{DIGITS}=0:1"), 2, "isn't a partition number"),
        (("read", STREAM, "--messages", "--schema", f"{DIGITS}=orders.avsc"), 2, "isn't a version number"),
        (("read", STREAM, "--messages", "--schema", DIGITS), 3, "can't be read: File name too long"),
        (("import", "--internal-stats", DIGITS), 3, "can't be read: File name too long"),
        (("import", "--admin-url", "http://127.0.0.1:1", "--namespace", HALF_PAIR), 2, "isn't a namespace"),
        (("group", "list", HALF_PAIR), 2, "is not a valid reader group name"),
        (("group", "set", HALF_PAIR, "--stream", STREAM), 2, "is not a valid reader group name"),
    ],
    ids=lambda each: " ".join(each)[:40] if isinstance(each, tuple) else None,
)
def test_value_that_nothing_has_is_a_mistake_of_the_call(
    offloader: Offloader, store_url: str, call: tuple[str, ...], code: int, text: str
) -> None:
    found, line, _ = offloader.refuses(*call, "--store", store_url)
    assert (found, text in line) == (code, True), line[:300]


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (("status", STREAM, "--interval", "1"), "--interval"),
        (("ls", STREAM, "--plot", "all.svg", "--limit", "1"), "--limit"),
        (("export", "iceberg", STREAM, *OF_A_STREAM["export iceberg"], "--every", "1"), "--every"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else None,
)
def test_an_option_without_effect_is_refused(
    offloader: Offloader,
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: tuple[str, ...],
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = offloader(*(each.format(folder=tmp_path) for each in call), "--store", store_url)
    assert (done.code, option in done.err) == (2, True), done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["--wide", "--debug"])
@pytest.mark.parametrize("is_first", [True, False])
def test_option_of_every_verb_that_is_given_a_value_says_that_it_takes_none(
    offloader: Offloader, store_url: str, name: str, *, is_first: bool
) -> None:
    words = [f"{name}=3", "ls"] if is_first else ["ls", f"{name}=3"]
    done = offloader(*words, "--store", store_url)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"offloader: option '{name}' does not take a value\nhint: give {name} without a value\n"
