"""``offloader config migrate``: keys of earlier releases become the new ones, and nothing else changes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from offloader.errors import AccessDenied, InvalidCall, NotFound
from offloader.settings.layered import FIELDS, OLD, parse_settings
from offloader.settings.migrate import migrate_file, migrate_settings
from offloader.settings.values import REPLACED

#: A value that differs from the default where others allow it.
VALUES: dict[str, object] = {
    "offload.entry_bytes_max": 1000,
    "offload.block_bytes": 4096,
    "retention.min_mbytes": 1024,
    "retention.max_mbytes": 2048.5,
    "retention.subscriber_timeout_minutes": 60,
    "retention.fallback_after_minutes": 90.5,
    "retention.fallback_min_minutes": 1440,
    "offload.deletion_lag_minutes": -1,
    "serve.upkeep": False,
    "serve.follow_seconds": 0.25,
}
#: Limits of one kind of traffic, which no limit of all of it replaces.
ONE_KIND = [old for old, new in REPLACED.items() if new in ("limits.bytes_per_s", "limits.requests_per_s")]
#: Attributes that were never a key, and settings of which only one may be given.
LEFT_OUT = {
    *(REPLACED.values() & OLD.keys()),
    *ONE_KIND,
    "retention.min_minutes",
    "retention.max_minutes",
    "retention.fallback_min_mbytes",
    "retention.fallback_max_mbytes",
}


def old_value(old: str) -> object:
    return VALUES.get(old, FIELDS[OLD[old]].default)


def every_old_key() -> str:
    """A file with every key of earlier releases, each with comments."""
    sections: dict[str, list[str]] = {}
    for old in OLD:
        if old not in LEFT_OUT:
            section, _, name = old.partition(".")
            sections.setdefault(section, []).append(
                f"# about {name}\n{name} = {json.dumps(old_value(old))}  # beside {name}\n"
            )
    sections["retention"].insert(0, 'policy = "consumption"\n')
    text = "# at the top\nstreaming_offload = true\n\n"
    return text + "\n".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items())


def test_every_old_key_gets_its_new_name_and_form() -> None:
    text = every_old_key()
    found = migrate_settings(text, "s.toml")
    values: dict[str, Any] = dict(parse_settings(found.after, "s.toml").layers[""])
    given = [old for old in OLD if f"\n{old.partition('.')[2]} = " in text]
    assert len(found.changes) >= len(set(OLD) - LEFT_OUT)
    for old in given:
        name = OLD[old]
        if old not in LEFT_OUT and name in values:
            assert values[name] == old_value(old), old
    assert values["ledgers.poll_interval_s"] == 0.25
    assert values["serve.maintenance"] is False
    assert values["offload.deletion_lag_minutes"] == -1


def test_comments_and_order_stay() -> None:
    text = every_old_key()
    after = migrate_settings(text, "s.toml").after
    assert sorted(_comments(after)) == sorted(_comments(text))
    moved = [each for each in _comments(text) if "follow_seconds" not in each]
    assert [each for each in _comments(after) if "follow_seconds" not in each] == moved
    headers = [line for line in text.splitlines() if line.startswith("[")]
    assert [line for line in after.splitlines() if line.startswith("[")] == headers


def _comments(text: str) -> list[str]:
    return [line.partition("#")[2] for line in text.splitlines() if "#" in line]


def test_a_second_time_changes_nothing() -> None:
    once = migrate_settings(every_old_key(), "s.toml").after
    again = migrate_settings(once, "s.toml")
    assert (again.after, again.changes) == (once, ())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("offload.block_bytes = 4096\n", 'offload.block_size = "4KiB"\n'),
        ("[offload]\r\nblock_bytes = 4_096 # x\r\n", '[offload]\r\nblock_size = "4KiB" # x\r\n'),
        ('[offload]\n"block_bytes" = 0x1000', '[offload]\nblock_size = "4KiB"'),
        ("offload = { block_bytes = 4096, codec = 'zstd' }\n", "offload = { block_size = \"4KiB\", codec = 'zstd' }\n"),
        ("serve.follow_seconds = 2\nserve.upkeep = true\n", 'ledgers.poll_interval = "2s"\nserve.maintenance = true\n'),
        ("[serve]\nfollow_seconds = 2", '[serve]\n\n\n[ledgers]\npoll_interval = "2s"\n'),
        (
            "[ledgers]\nledger_entries_max = 5\n\n[serve]\n# often\nfollow_seconds = 2\nregion = 'x'\n",
            "[ledgers]\nledger_entries_max = 5\n# often\npoll_interval = \"2s\"\n\n[serve]\nregion = 'x'\n",
        ),
        (
            '[namespaces."a/b"]\n[namespaces."a/b".retention]\npolicy = "size"\nmin_mbytes = 0.5\n',
            '[namespaces."a/b"]\n[namespaces."a/b".retention]\npolicy = "size"\nmin_size = "512KiB"\n',
        ),
        (
            "[topics.'a/b/persistent/c'.offload]\nblock_bytes = 300\n",
            "[topics.'a/b/persistent/c'.offload]\nblock_size = \"300B\"\n",
        ),
        (
            "[topics]\n'a/b/persistent/c'.offload.block_bytes = 300\n",
            "[topics]\n'a/b/persistent/c'.offload.block_size = \"300B\"\n",
        ),
        (
            '[pulsar]\ntopics = [\n  "a]\'#", # upkeep = 1\n  """x\n"y""""\n]\ntopics_seconds = 1\n',
            '[pulsar]\ntopics = [\n  "a]\'#", # upkeep = 1\n  """x\n"y""""\n]\ndiscovery_interval = "1s"\n',
        ),
        ("[offload]\n#block_bytes = 1\nblock_bytes = '8KiB'\n", '[offload]\n#block_bytes = 1\nblock_size = "8KiB"\n'),
    ],
)
def test_each_way_to_write_a_key(before: str, after: str) -> None:
    found = migrate_settings(before, "s.toml").after
    assert found == after
    parse_settings(found, "s.toml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[offload]\nblock_bytes = 4096\nblok = 1\n", "offload.blok: no such setting"),
        ("[offload]\nblock_bytes = 1\n", "offload.block_bytes: 1 is not between"),
        ("[offload]\nblock_bytes = 1.5\n", "offload.block_bytes: 1.5 is not a whole number"),
        ("[offload]\nblock_bytes = 4096\nblock_size = '4KiB'\n", "offload.block_size is set too"),
        ("[limits]\nread_bytes_per_s = 'x'\nupload_bytes_per_s = 5\n", "limits.read_bytes_per_s: 'x' is not a number"),
        *((f"[limits]\n{old[7:]} = 5\n", f"{old}: one limit now covers all traffic: replace") for old in ONE_KIND),
        ("[ledgers]\npoll_interval_s = 1\n[serve]\nfollow_seconds = 1\n", "ledgers.poll_interval is set too"),
        ("[retention]\nmin_mbytes = 5\n", "retention.min_size: has no effect"),
        ("serve = { follow_seconds = 1 }\nledgers = { ledger_entries_max = 1 }\n", "can't be rewritten in this layout"),
        ('[namespaces."a/b".serve]\nfollow_seconds = 1\n', "can't be rewritten in this layout"),
        ("[offload\n", "isn't TOML"),
    ],
)
def test_a_file_that_would_not_load_afterwards_stays_as_it_is(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "offloader.toml"
    path.write_text(text)
    with pytest.raises(InvalidCall) as refused:
        migrate_file(str(path), dry_run=False)
    assert why in refused.value.message
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_replaced_with_its_mode_and_behind_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "real.toml", tmp_path / "offloader.toml"
    path.write_text("[offload]\nblock_bytes = 4096\n")
    path.chmod(0o640)
    link.symlink_to(path)
    assert migrate_file(str(link), dry_run=True).changes == (("offload.block_bytes", "offload.block_size"),)
    assert "block_bytes" in path.read_text()
    before = path.stat().st_ino
    migrate_file(str(link), dry_run=False)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_ino != before
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "offloader.toml"
    path.write_text("[offload]\nblock_bytes = 4096\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AccessDenied, match="No space left"):
        migrate_file(str(path), dry_run=False)
    assert path.read_text() == "[offload]\nblock_bytes = 4096\n"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(NotFound):
        migrate_file(str(tmp_path / "none.toml"), dry_run=False)
