"""The page's files: all of them and nothing else are served, and they send requests to the offloader only."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from offloader.plot import Span, StreamTimeline
from offloader.service.http.routes import PAGE_HEADERS, page_files
from offloader.service.view_documents import BARS_MAX, POINTS_MAX, timeline_document
from tests.support.http_process import ask, http_process

FOLDER = Path(__file__).resolve().parents[3] / "offloader" / "service" / "dashboard"


def text(path: str) -> str:
    return page_files()[path].body.decode()


def test_every_file_of_the_page_is_served_but_no_python() -> None:
    names = {path.name for path in FOLDER.iterdir() if path.suffix not in (".py", "") and path.is_file()}
    assert {path.rpartition("/")[2] or "index.html" for path in page_files()} == names
    for file in page_files().values():
        assert file.body
        assert re.fullmatch(r'"[0-9a-f]{32}"', file.etag)


def test_files_referenced_by_the_page_exist() -> None:
    page = text("/")
    for named in re.findall(r'(?:href|src)="([^"#]+)"', page):
        assert f"/{named}" in page_files()
    for path, file in page_files().items():
        for named in re.findall(r'from "\./([^"]+)"', file.body.decode() if path.endswith(".js") else ""):
            assert f"/dashboard/{named}" in page_files(), f"{path} imports {named}"


def test_page_has_no_inline_scripts_or_foreign_sources() -> None:
    """What the content security policy forbids isn't tried; an address that isn't a namespace is nowhere."""
    page = text("/")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page) == []
    for path in page_files():
        assert [each for each in re.findall(r"https?://[^\s\"']+", text(path)) if "www.w3.org" not in each] == []
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function", text(path))
    rules = dict(part.strip().partition(" ")[::2] for part in PAGE_HEADERS["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert {value for name, value in rules.items() if name != "default-src"} <= {"'self'", "'none'"}


@pytest.mark.slow
def test_timeline_of_many_segments_is_reduced() -> None:
    count = 100_000
    spans = [Span(f"segment {number + 1}", number * 10, number * 10 + 10, 7) for number in range(count)]
    timeline = [point for number in range(count) for point in ((number * 10, number), (number * 10 + 9, number))]
    ledgers = [Span("ledger 3", 0, count * 10, 5)]
    document = timeline_document(StreamTimeline("a", ledgers, spans, timeline, [(5, "gap 3:1..3:4")]))
    told = document["segments"]
    assert len(told) <= BARS_MAX
    assert [told[0]["start"], told[-1]["stop"]] == [0, count * 10]
    assert all(one["stop"] == other["start"] for one, other in itertools.pairwise(told))
    assert sum(each["size_bytes"] for each in told) == count * 7
    assert told[0]["name"] == "segment 1 to 250"
    assert len(document["timeline"]) <= POINTS_MAX + 1
    assert document["timeline"][0] == [0, 0]
    assert document["timeline"][-1] == [count * 10 - 1, count - 1]
    assert (document["segments_total"], document["ledgers_total"], document["is_thinned"]) == (count, 1, True)
    assert document["gaps"] == [[5, "gap 3:1..3:4"]]
    assert document["ledgers"] == [{"name": "ledger 3", "start": 0, "stop": count * 10, "size_bytes": 5}]


@pytest.mark.slow
def test_guests_get_only_the_page_files(tmp_path: Path) -> None:
    access = {"read_tokens": ["env:READ"]}
    environ = {"READ": "a-token-that-is-long-enough"}
    with http_process(tmp_path, {"access": access}, streams=(), environ=environ) as (http, _):
        for path, file in page_files().items():
            answer = ask(http.url + path)
            assert (answer.status, answer.body) == (200, file.body)
            found = {name.lower(): value for name, value in answer.headers.items()}
            assert found["content-type"] == file.media_type
            assert {name: found[name.lower()] for name in PAGE_HEADERS} == PAGE_HEADERS
            again = ask(http.url + path, headers={"If-None-Match": file.etag})
            assert (again.status, again.body) == (304, b"")
            assert ask(http.url + path, method="HEAD").status == 200
            assert ask(http.url + path, method="POST").status == 405
        assert ask(f"{http.url}/v1/overview").status == 401
        elsewhere = (
            "/dashboard/",
            "/dashboard/files.py",
            "/dashboard/../files.py",
            "/dashboard/%2e%2e/files.py",
            "/index.html",
        )
        for token in ("", environ["READ"]):
            assert [ask(http.url + path, token=token).status for path in elsewhere] == [404] * len(elsewhere)


@pytest.mark.slow
def test_addresses_used_by_the_page_are_in_the_description(tmp_path: Path) -> None:
    """Each address in ``api.js`` is a path of the interface."""
    asked = set(re.findall(r'"(v1/\w+)"', text("/dashboard/api.js")))
    asked |= {
        f"v1/streams/{{stream}}{each}" for each in re.findall(r'of\(name(?:, "([^"]+)")?\)', text("/dashboard/api.js"))
    }
    assert len(asked) == 16
    with http_process(tmp_path, streams=()) as (http, _):
        described = ask(f"{http.url}/v1/openapi.json").json()["paths"]
    assert {f"/{each}" for each in asked} <= set(described)
