"""Every verb called wrongly: one line that says what, one that says what to do, the exit code, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

import offloader as library
from offloader.cli.main import VERBS
from tests.cli.reading_verbs import Offloader
from tests.support.waiting import PATIENCE_S

STREAM = "public/default/persistent/orders"
#: Verb -> what it needs behind a stream's name to be complete; ``{folder}`` holds the ledger database.
OF_A_STREAM: dict[str, tuple[str, ...]] = {
    "accept-source": ("--ledgers", "sqlite:///nowhere/ledgers.db"),
    "accept-loss": ("--ledgers", "sqlite:///{folder}/l.db"),
    "pause": (),
    "resume": (),
    "segments": (),
    "read": (),
    "verify": (),
    "status": (),
    "delete-stream": ("--yes",),
    "truncate": ("--before", "0:1"),
    "replay": ("--to", "persistent://a/b/c", "--service-url", "pulsar://127.0.0.1:1"),
    "retention explain": (),
    "retention plan": (),
    "retention run": (),
    "retention subscribers": (),
    "retention add": ("who",),
    "retention publish": ("who", "--at", "0:1"),
    "retention remove": ("who",),
    "cleanup plan": (),
    "cleanup undo": (),
    "cleanup orphans": (),
    "cleanup hold": (),
    "cleanup audit": (),
    "manifest show": (),
    "manifest checkpoint": (),
    "manifest expire": (),
    "rollback plan": (),
    "rollback apply": (),
}
#: Verbs without a stream, or that make one, look at a ledger database first, or need a JVM: ``tests/spark`` has those.
OTHERS = {"adopt", "config", "demo", "doctor", "inspect", "ls", "offload", "serve", "spark"}


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Offloader:
    for name in ("OFFLOADER_STORE", "OFFLOADER_LEDGERS", "OFFLOADER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Offloader(capsys)


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wrong-calls")
    url = f"file://{folder}/store"
    with library.open_managed_ledger(
        STREAM, ledgers=f"sqlite:///{folder}/l.db", store=library.open_store(url)
    ) as topic:
        topic.append_batch([b"entry"] * 5)
        topic.offload(timeout_s=PATIENCE_S)
    return url


def test_every_verb_is_called_wrongly_here() -> None:
    assert {each.split()[0] for each in OF_A_STREAM} | OTHERS == set(VERBS)


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
        (2, "not a store's URL", (*words, STREAM, *more, "--store", "nope")),
        (2, " store", (*words, STREAM, *more)),
        (3, "no such directory", (*words, STREAM, *more, "--store", f"file://{folder}/missing")),
    ]
    if verb != "cleanup audit":  # what was deleted from where there never was a stream
        cases.append((2, "stream name 'a//b' can't be used", (*words, "a//b", *more, *store)))
    if verb not in (
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


def test_a_directory_is_made_only_for_a_stream_that_is_there_to_be_offloaded(
    offloader: Offloader, store_url: str, tmp_path: Path
) -> None:
    ledgers = f"sqlite:///{store_url.removeprefix('file://')}/../l.db"
    missing = ("--store", f"file://{tmp_path}/store")
    calls = [
        (3, "no such directory", ("adopt",)),
        (2, "no ledger database", ("offload", STREAM)),
        (3, "doesn't exist", ("offload", STREAM, "--ledgers", f"sqlite:///{tmp_path}/l.db")),
        (3, "isn't in ledger database", ("offload", "a/b/persistent/c", "--ledgers", ledgers)),
    ]
    for code, text, call in calls:
        found, line, _ = offloader.refuses(*call, *missing)
        assert (found, text in line) == (code, True), f"{call}: {found} {line}"
        assert list(tmp_path.iterdir()) == []
    offloader("offload", STREAM, "--ledgers", ledgers, *missing)
    assert (tmp_path / "store").is_dir()


@pytest.mark.parametrize("verb", ["retention", "cleanup", "manifest", "rollback", "config", "spark"])
def test_a_verb_without_its_action_names_them(offloader: Offloader, verb: str) -> None:
    code, line, hint = offloader.refuses(verb)
    assert (code, hint) == (2, f"see `offloader {verb} --help`")
    assert line.startswith("missing a")
    assert len(line) < 200
    assert offloader.refuses(verb, "nosuch")[0] == 2
