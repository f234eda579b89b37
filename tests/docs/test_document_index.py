"""Indexes list every document once, links lead to files and headings that exist, the site shows every page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
DECISIONS = DOCS / "decisions" / "README.md"
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(ROOT / name / "README.md" for name in ("deploy", "pulsar-plugin")),
    *sorted(DOCS.rglob("*.md")),
]
#: ``* [NAME](PATH): text``
ENTRY = re.compile(r"^\* \[([^\]]+)\]\(([^)#]+)\): (\S.*)$", re.M)


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Headings as code hosts name them: lower case, punctuation dropped, blanks as hyphens."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text(encoding="utf-8")), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain)


def broken_links(path: Path) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text(encoding="utf-8")))
    broken = []
    for link in links:
        if re.match(r"[a-z+]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_index_lists_every_document_once() -> None:
    listed = [
        (index.parent / target).resolve()
        for index in (INDEX, DECISIONS)
        for _, target, _ in ENTRY.findall(index.read_text(encoding="utf-8"))
    ]
    assert sorted(listed) == sorted(path for path in DOCS.rglob("*.md") if path != INDEX)


@pytest.mark.parametrize("index", [INDEX, DECISIONS], ids=lambda path: path.parent.name)
def test_index_names_each_document_by_its_file_in_one_line(index: Path) -> None:
    text = index.read_text(encoding="utf-8")
    entries = ENTRY.findall(text)
    assert len(entries) == len(re.findall(r"^\* ", text, re.M)), "each list item is a link and one line about it"
    assert [name for name, target, _ in entries if not target.endswith(name)] == []


def test_site_shows_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    shown = [
        ROOT / name.removeprefix("project/") if name.startswith("project/") else DOCS / name
        for name in re.findall(r"- (?:[\w ]+: )?(\S+\.md)$", nav, re.M)
    ]
    assert sorted(shown) == sorted(DOCUMENTS)


def test_site_is_strict_and_loads_nothing_from_elsewhere() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.search(r"^strict: true$", config, re.M)
    assert re.search(r"^  font: false$", config, re.M)
    assert re.search(r"^plugins: \[search\]$", config, re.M), "offline loads a script from another site"
    assert "://" not in config


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    assert broken_links(path) == []


def test_broken_files_and_headings_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `heading`, here\n\n[1](#a-heading-here) [2](#elsewhere) [3](absent.md) [4](https://example.org/x)\n"
        "```text\n# no heading\n[5](absent-too.md)\n```\n[6](page.md#no-heading)\n",
        encoding="utf-8",
    )
    assert broken_links(page) == ["#elsewhere", "absent.md", "page.md#no-heading"]
