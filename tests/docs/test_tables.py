"""Tables, samples of documents and defaults in pages equal what the program has."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import shlex
from dataclasses import Field, fields
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import offloader
from docs.make_reference import generated, type_of
from formats.documents import Decisions, Records, Subscribers, document_key, group_key, topic_key
from formats.entries import Position
from formats.manifest import EDIT_KINDS, Assign, LedgerClosed, Offloaded, decode_record, encode_record
from formats.pulsar.messages import COLUMNS, ENTRY_COLUMNS
from offloader.cli.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from offloader.cli.main import main
from offloader.cli.tree import TREE, leaves
from offloader.errors import ErrorKind
from offloader.groups import reader_groups
from offloader.iceberg.history import ExportedRange
from offloader.ledgers.pulsar.discovery import TopicPatterns
from offloader.retention import state, subscribers
from offloader.service.auth import OPERATION_OF_ACTION, OPERATION_OF_ROUTE, OPERATIONS, Role
from offloader.service.http.routes import DESCRIPTION
from offloader.service.providers.flight import ACTIONS
from offloader.settings import Settings
from offloader.settings.fields import allowed, in_file
from offloader.settings.layered import (
    ALIASES,
    FIELDS,
    is_of_process,
    parse_settings,
    value_of,
)
from offloader.spark.options import _OPTIONS, _STREAM_ONLY, CONTENTS, SourceOptions, ddl
from offloader.spark.stream import decode_offsets
from offloader.stored_stream import Stream
from services.binaries import GO_VERSION_MIN
from tests.contracts.log_events import log_events
from tests.docs.test_links import CURRENT
from tests.docs.worlds import ROOT
from tests.proof.chaos.chaos_schedule import FAULTS, ROLES
from tests.retention.test_explain import EXPECTED
from tests.support.http_process import ask, http_process
from tests.support.pages import fences
from tests.test_architecture import FUNCTION_LINES_MAX, MODULE_LINES_MAX

DOCS = ROOT / "docs"
COMMANDS = {name: command for panel in TREE.values() for name, command in panel.items()}
#: Options of Spark and Docker, and those that every verb has beside its own.
OTHERS = {"--conf", "--format", "--properties-file", "--py-files", "--profile", "--volumes", "--debug", "--wide"}


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def tables(text: str, *header: str) -> list[list[list[str]]]:
    """The tables whose header begins with these cells: the rows of each as cells."""
    found: list[list[list[str]]] = []
    for lines in re.findall(r"^(\|.*\n\| ?---.*\n(?:\|.*\n)*)", text, re.M):
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines.splitlines()]
        if tuple(rows[0][: len(header)]) == header:
            found.append(rows[2:])
    return found


def table(text: str, *header: str) -> list[list[str]]:
    (found,) = tables(text, *header)
    return found


def code(cell: str) -> list[str]:
    """What of a cell is in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.slow
def test_generated_reference_is_up_to_date() -> None:
    texts = generated()
    assert len(texts) == 7 + len(COMMANDS)
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, "run ./dev reference"


def test_command_line_tables_have_every_verb_once_and_the_exit_codes() -> None:
    text = page("reference/command-line.md")
    assert [name for row in table(text, "command") for name in code(row[0])] == list(COMMANDS)
    rows = [(int(row[0]), row[1]) for row in table(text, "exit code")]
    kinds = {kind.value: kind.name.lower() for kind in ErrorKind}
    assert dict(rows) == {0: "", **kinds, EXIT_INTERRUPTED: "interrupted", EXIT_BROKEN_PIPE: ""}
    assert len(rows) == len(dict(rows))


@cache
def options_of(*words: str) -> frozenset[str]:
    """The options in the help of a verb, or of its action."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        main([*words, "--help"])
    return frozenset(re.findall(r"--[a-z][a-z-]+", out.getvalue()))


def commands(text: str) -> list[list[str]]:
    """The commands of ours that a page shows, in blocks and in sentences, as words without the program."""
    code_lines = [line for _, body in fences(text) for line in body.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"`(offloader [^`]+)`", text.replace("\n", " "))
    found = [line.removeprefix("$ ") for line in code_lines]
    return [shlex.split(line, comments=True)[1:] for line in [*found, *spans] if re.match(r"offloader [a-z]", line)]


@pytest.mark.slow
def test_commands_in_pages_have_options_that_exist() -> None:
    wrong = []
    for path in CURRENT:
        for words in commands(path.read_text(encoding="utf-8")):
            named = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
            assert words[0] in COMMANDS or not named, f"{path}: {words}"
            has_action = words[1:] and re.match(r"[a-z]", words[1])
            known = options_of(*words[: 2 if has_action else 1]) | options_of(words[0]) if named else frozenset()
            wrong += [f"{path.relative_to(ROOT)}: offloader {words[0]} {option}" for option in named - known]
    assert wrong == []


@pytest.mark.slow
def test_options_named_by_themselves_are_those_of_a_verb() -> None:
    """In the pages about our commands."""
    known = {option for words, _ in leaves() for option in options_of(*words.split())}
    wrong = []
    for path in CURRENT:
        if path.parent.name in ("how-to", "tutorials") or path.name in ("README.md", "command-line.md"):
            named = set(re.findall(r"`(--[a-z][a-z-]+)", path.read_text(encoding="utf-8")))
            wrong += [f"{path.relative_to(ROOT)}: {option}" for option in named - known - OTHERS]
    assert wrong == []


def test_fault_testing_tables_have_all_roles_and_faults() -> None:
    text = page("explanation/fault-testing.md")
    for header, known in (("process", ROLES), ("fault", FAULTS)):
        assert {name for row in table(text, header) for name in row[0].split(", ")} == set(known)


def test_flight_table_has_the_actions() -> None:
    rows = [(*code(row[0]), *row[1:]) for row in table(page("reference/flight.md"), "action", "role")]
    assert rows == [(name, OPERATION_OF_ACTION[name].who, about) for name, about in ACTIONS.items()]


@pytest.mark.slow
def test_http_table_has_the_paths_with_the_roles_that_are_let_in(tmp_path: Path) -> None:
    tokens = {role.name.lower(): f"{role.name.lower()}-token-0123456789" for role in Role}
    scoped = {name: f"{name}-token-0123456789" for name in ("subscriber", "broker", "streams")}
    access = {
        **{f"{name}_tokens": [f"env:{name}"] for name in tokens},
        "subscriber_tokens": {"nobody": "env:subscriber"},
        "broker_tokens": ["env:broker"],
        "stream_tokens": {"none": "env:streams"},
    }
    rows = []
    with http_process(tmp_path, {"access": access}, environ={**tokens, **scoped}, streams=()) as (http, _):
        paths = ask(f"{http.url}/v1/openapi.json", token=tokens["read"]).json()["paths"]
        for path, method, about in [(path, *each) for path, methods in paths.items() for each in methods.items()]:
            url = http.url + path.format(stream="none", subscriber="nobody", ledger=7, group="none")
            let_in = [
                name
                for name, token in {"-": "", **tokens, **scoped}.items()
                if ask(url, method=method.upper(), token=token).status not in (401, 403)
            ]
            who = ", ".join([let_in[0], *(name for name in scoped if let_in[0] != "-" and name in let_in)])
            assert OPERATION_OF_ROUTE[f"{method.upper()} {path}"].who == who
            rows.append([method.upper(), f"`{path}`", who, about["description"].splitlines()[0]])
    assert table(page("reference/http.md"), "method", "path") == rows
    assert set(OPERATION_OF_ROUTE) == {f"{row[0]} {row[1][1:-1]}" for row in rows} | {f"GET {DESCRIPTION}"}


def test_http_table_has_the_operations_that_are_checked() -> None:
    rows = []
    for each in OPERATIONS.values():
        looks = each is OPERATIONS["look"]
        http = "every other GET" if looks else ", ".join(f"`{route}`" for route in each.http)
        rows.append([cell or "-" for cell in (each.about, each.who, http, ", ".join(f"`{n}`" for n in each.flight))])
    assert table(page("reference/http.md"), "operation") == rows


def test_manifest_sample_record_decodes_to_the_documented_edits() -> None:
    (sample,) = [body for info, body in fences(page("explanation/manifest.md")) if info == "json"]
    data = sample.replace("\n", "").encode()
    record = decode_record(data)
    assert encode_record(record) == data
    assert record.record_id == 3
    closed, offloaded, assigned = record.edits
    assert closed == LedgerClosed(7, 5)
    assert isinstance(offloaded, Offloaded)
    assert isinstance(assigned, Assign)
    assert (offloaded.summary.end, assigned.begin) == (Position(8, 3), Position(8, 4))


def test_manifest_table_has_every_kind_of_edit_once() -> None:
    assert [code(row[0])[0] for row in table(page("explanation/manifest.md"), "edit")] == list(EDIT_KINDS)


SOURCE = {"store": "file:///x", "stream": "y"}


def defaults(rows: list[list[str]]) -> dict[str, str]:
    """Options whose last cell is a value in backquotes."""
    return {code(row[0])[0]: code(row[-1])[0] for row in rows if row[-1].startswith("`")}


def test_messages_tables_have_the_columns_and_options_of_the_source() -> None:
    text = page("reference/messages.md")
    rows = table(text, "column", "type")
    # A type of Spark may have commas within angle brackets.
    assert ", ".join(f"{code(name)[0]} {kind}" for name, kind, *_ in rows) == ddl("messages")
    assert {code(row[0])[0] for row in rows} == {"stream", *COLUMNS}
    assert {code(row[0])[0] for row in rows if row[2]} == {"stream", *ENTRY_COLUMNS}
    given = defaults(table(text, "option"))
    assert set(given) == {"onBadMessage", "markers", "messageBytesMax"}
    messages = {**SOURCE, "content": "messages"}
    assert SourceOptions.of({**messages, **given}) == SourceOptions.of(messages)


def test_streaming_query_options_have_the_documented_defaults() -> None:
    rows = table(page("how-to/streaming-queries.md"), "option")
    given = defaults(rows)
    assert set(given) == {"startFrom", "failOnDataLoss", "subscriberRenewSeconds"}
    assert SourceOptions.of({**SOURCE, **given}) == SourceOptions.of(SOURCE)
    named = {name for row in rows for name in code(row[0])}
    numbers = ("maxEntriesPerTrigger", "maxBytesPerTrigger")
    assert set(numbers) <= named
    options = SourceOptions.of({**SOURCE, **dict.fromkeys(numbers, "5")})
    assert (options.max_entries_per_trigger, options.max_bytes_per_trigger) == (5, 5)


def test_streaming_query_offset_is_one_that_the_source_reads() -> None:
    (sample,) = [body for info, body in fences(page("how-to/streaming-queries.md")) if info == "json"]
    offset = json.loads(sample)
    offset["orders"]["incarnation"] = "3f0c0000-0000-0000-0000-000000000000"
    assert str(decode_offsets(offset)["orders"].position) == "4:49"


def test_spark_tables_have_every_content_and_option() -> None:
    text = page("reference/spark.md")
    contents = {code(name)[0]: columns for name, _, columns in table(text, "`content`")}
    assert tuple(contents) == CONTENTS
    for content in set(CONTENTS) - {"messages"}:
        assert ddl(content, contents[content].strip("`").split(", ")) == ddl(content)
    rows = table(text, "option")
    assert {code(row[0])[0] for row in rows} == set(_OPTIONS) - set(_STREAM_ONLY)
    assert len(defaults(rows)) == 8
    assert SourceOptions.of({**SOURCE, **defaults(rows)}) == SourceOptions.of(SOURCE)


def test_subscribers_tables_have_the_keys_types_and_limits() -> None:
    text, one = page("reference/subscribers.md"), UUID(int=1)
    keys = [document_key(Subscribers, "s", one), document_key(Records, "s", one), document_key(Decisions, "s", one)]
    keys = [key.replace("s/", "<stream>/", 1).replace(str(one), "<incarnation>") for key in keys]
    keys += [topic_key("t").replace("t/", "<topic>/", 1), group_key("g").replace("/g", "/<group>")]
    assert [code(row[0])[0] for row in table(text, "key below the store's root")] == keys
    limits = {name: int(re.findall(r"[\d,]+", value)[0].replace(",", "")) for name, value in table(text, "limit")}
    assert limits == {
        "subscribers of a stream": subscribers.SUBSCRIBERS_MAX,
        "positions in all recorded cuts of a stream": state.POSITIONS_MAX,
        "decisions kept": state.DECISIONS_MAX,
    }


def test_reader_groups_tables_have_the_types_settings_and_limits() -> None:
    text = page("how-to/reader-groups.md")
    types = [code(row[0])[0] for row in table(text, "retention type")]
    assert sorted(types) == sorted(each.value for each in reader_groups.RetentionType)
    config = reader_groups.GroupConfig(["s"])
    for names, default, _ in table(text, "`GroupConfig`"):
        if default.replace(",", "").isdecimal():
            assert getattr(config, code(names)[0]) == int(default.replace(",", ""))
    named = {name for row in table(text, "`GroupConfig`") for name in code(row[0])}
    assert named == {field.name for field in fields(reader_groups.GroupConfig)} - {"streams", "retention"}
    limits = {name: int(re.findall(r"[\d,]+", value)[0].replace(",", "")) for name, value in table(text, "limit")}
    assert limits == {
        "streams of a group; readers of a group": reader_groups.GROUP_STREAMS_MAX,
        "checkpoints that a group keeps": reader_groups.CHECKPOINTS_MAX,
    }
    assert reader_groups.GROUP_STREAMS_MAX == reader_groups.READERS_MAX


def test_arrow_and_iceberg_pages_have_the_arguments_and_the_properties_of_a_commit() -> None:
    keywords = set(inspect.signature(Stream.scan).parameters) - {"self"}
    assert {name for row in table(page("how-to/read-python.md"), "argument") for name in code(row[0])} == keywords
    ends: dict[str, Any] = {"first": Position(1, 0), "last": Position(1, 9), "after": None}
    facts = ExportedRange(stream="s", incarnation="i", manifest=1, entries=10, rows=10, lost=False, **ends)
    assert {name for row in table(page("explanation/iceberg-export.md"), "property") for name in code(row[0])} == set(
        facts.encode()
    )


def row_of(section: str, field: Field[Any]) -> list[str]:
    """A row of the table of settings in all its columns."""
    name = f"{section}.{field.name}"
    value = in_file(field.default)
    default = str(value).lower() if isinstance(value, bool) else str(value)
    return [
        f"`{name}`",
        "(empty)" if default in ("", "()") else default,
        type_of(field.metadata, field.default),
        allowed(field.metadata),
        "process" if is_of_process(name) else "stream",
        field.metadata["doc"],
    ]


def test_settings_tables_in_pages_are_complete_with_defaults() -> None:
    """A page that has a section's table has all of it in order; the process's own without type, values and place."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md")) if path.name != "settings.md"]
    found: dict[str, list[list[str]]] = {}
    for row in (row for text in texts for rows in tables(text, "setting") for row in rows):
        found.setdefault(code(row[0])[0].partition(".")[0], []).append(row)
    for section in fields(Settings):
        wanted = [row_of(section.name, each) for each in fields(getattr(Settings(), section.name))]
        short = [[row[0], row[1], row[-1]] for row in wanted]
        assert found.get(section.name, short) in (wanted, short), section.name


def test_settings_named_in_pages_exist() -> None:
    sections = "|".join(section.name for section in fields(Settings))
    units = "ms|seconds|minutes|hours|days|bytes|mbytes"
    known = {*FIELDS, *ALIASES, "broker.conf", "pulsar.toml"}  # files
    amounts = {each.partition(".")[2] for each in known} | {rule.name.lower() for rule in state.Rule}
    unknown = []
    for path in CURRENT:
        text = path.read_text(encoding="utf-8")
        unknown += [each for each in re.findall(rf"`((?:{sections})\.[a-z_]+)(?:`| = )", text) if each not in known]
        if path.name in ("retention.md", "subscribers.md", "deleting.md", "serve.md", "offloading.md"):
            named = re.findall(rf"`((?!offloader_)[a-z_]+_(?:{units}))`", text)
            unknown += [each for each in named if each not in amounts]
    assert unknown == []


UNITS = {"day": "d", "days": "d", "hour": "h", "hours": "h", "minute": "m", "minutes": "m"}


def test_defaults_in_parentheses_after_settings_are_the_settings() -> None:
    """``cleanup.grace_period`` (1 day), in pages and in the rules of alerts."""
    names = {name: name for name in FIELDS} | {name.partition(".")[2]: name for name in FIELDS}
    paths = [*(path for path in CURRENT if path.name != "python.md"), ROOT / "deploy" / "alerts.yml"]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    found = re.findall(r"(?<![\w.])([a-z_]+(?:\.[a-z_]+)?)`?,?\s\(?(\d+) ?([A-Za-z]*)\)", text)
    named = [(key, f"{number}{UNITS.get(unit, unit)}") for key, number, unit in found if key in names]
    assert len(named) >= 20
    wrong = []
    for key, value in named:
        default = FIELDS[names[key]].default
        given: Any = float(value) if value.isdigit() and isinstance(default, int | float) else value
        wrong += [(key, value)] if value_of(names[key], given) != default else []
    assert wrong == []


def test_topic_patterns_of_the_tutorial_have_its_topics() -> None:
    (sample,) = [body for info, body in fences(page("tutorials/beside-pulsar.md")) if info == "toml"]
    pulsar = parse_settings(sample, "offloader.toml").settings_of("").pulsar
    assert TopicPatterns.of(pulsar.topics, pulsar.exclude).have("persistent://public/default/orders-eu")


def test_retention_page_shows_the_picture_that_the_command_prints() -> None:
    assert EXPECTED.strip("\n") in page("explanation/retention.md"), "see tests/retention/test_explain.py"


def test_retention_page_explains_every_rule() -> None:
    text = page("explanation/retention.md")
    assert {rule.name.lower() for rule in state.Rule} <= set(re.findall(r"`(\w+)`", text))


@pytest.mark.slow
def test_log_events_page_has_exactly_the_logged_events() -> None:
    logged = {line.partition(":")[0] for line in log_events().partition("\n\n")[2].splitlines()}
    # Put together of what was done.
    logged -= {"(...)_failed", "(no event)"}
    logged |= {"cleanup_failed", "orphans_failed", "segment_offloaded", "segment_rewritten"}
    rows = [row for rows in tables(page("reference/log-events.md"), "event") for row in rows]
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row[0])} == logged


def test_contributing_has_the_projects_limits() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"Go {GO_VERSION_MIN[0]}.{GO_VERSION_MIN[1]}" in text
    assert f"modules ({MODULE_LINES_MAX} lines) and functions ({FUNCTION_LINES_MAX})" in text
    known = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("dev", "tests/proof/simulation/seeds.py"))
    assert [name for name in re.findall(r"`(OFFLOADER_[A-Z_]+)`", text) if name not in known] == []


#: A process, a first look and its settings, and the jobs of ``offloader.spark``.
WITHOUT_EQUAL = ("demo", "serve", "config ", "spark ")


def test_each_command_has_an_equal_in_the_library() -> None:
    rows = table(page("how-to/operate-python.md"), "command")
    told = {command for row in rows for command in code(row[0])} - {"ls --all", "read --follow"}
    assert told == {name for name, _ in leaves() if not name.startswith(WITHOUT_EQUAL)}
    for place in (each for row in rows for each in code(row[1])):
        kind, _, attribute = place.partition(".")
        assert hasattr(getattr(offloader, kind), attribute), place
    for kind in (each for row in rows for each in code(row[2]) if each[0].isupper()):
        assert hasattr(offloader, kind), kind
