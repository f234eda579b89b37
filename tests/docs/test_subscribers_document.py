"""docs/how-to/subscribers.md: its examples print the documented output, its keys and limits are the program's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from formats.documents import Decisions, Records, Subscribers, document_key, group_key, topic_key
from offloader.retention import reader_groups, subscribers
from offloader.retention import reader_groups as group_checkpoints
from offloader.retention import state as recorded_state
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "subscribers.md").read_text(encoding="utf-8")


@pytest.mark.process
def test_the_examples_print_what_the_text_shows() -> None:
    samples = re.findall(r"^```python\n(.*?)^```\n\nprints\n\n```text\n(.*?)^```$", TEXT, re.M | re.S)
    assert len(samples) == TEXT.count("```python") == 2
    script = "\nprint('--end--')\n".join(code for code, _ in samples)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [shown for _, shown in samples] == done.stdout.split("--end--\n")


def test_the_commands_print_what_the_text_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{tmp_path}/store")
    writer = StreamWriter(store, "orders")
    writer.add([batch_of(1, 0, 100), batch_of(2, 0, 100), batch_of(3, 0, 50)], closes=[1, 2])
    monkeypatch.setenv("OFFLOADER_STORE", store.url)
    offloader = Offloader(capsys)
    (shown,) = re.findall(r"^```console\n(.*?)^```$", TEXT, re.M | re.S)
    for command, printed in re.findall(r"^\$ offloader (.*)\n((?:(?!\$).*\n)*)", shown, re.M):
        done = offloader(*command.split())
        assert done.out + done.err == printed


def test_the_keys_of_the_table_are_the_programs() -> None:
    named = re.findall(r"^\| `([^`]+)` \| ", TEXT, re.M)
    one = UUID(int=1)
    keys = [document_key(Subscribers, "s", one), document_key(Records, "s", one), document_key(Decisions, "s", one)]
    expected = [key.replace("s/", "<stream>/", 1).replace(str(one), "<incarnation>") for key in keys]
    expected += [topic_key("t").replace("t/", "<topic>/", 1), group_key("g").replace("/g", "/<group>")]
    assert [name for name in named if "/" in name] == expected
    types = [name for name in named if "/" not in name]
    assert types == [
        each.value for each in (reader_groups.RetentionType.NONE, *list(reader_groups.RetentionType)[:0:-1])
    ]


def test_the_limits_of_the_table_are_the_programs() -> None:
    rows = dict(re.findall(r"^\| ([a-z][^|`]+) \| ([\d,]+)", TEXT, re.M))
    numbers = {name: int(number.replace(",", "")) for name, number in rows.items()}
    assert numbers == {
        "subscribers of a stream": subscribers.SUBSCRIBERS_MAX,
        "streams of a group; readers of a group": reader_groups.GROUP_STREAMS_MAX,
        "checkpoints that a group keeps": group_checkpoints.CHECKPOINTS_MAX,
        "positions in all recorded cuts of a stream": recorded_state.POSITIONS_MAX,
        "decisions kept": recorded_state.DECISIONS_MAX,
    }
    assert reader_groups.GROUP_STREAMS_MAX == group_checkpoints.READERS_MAX
