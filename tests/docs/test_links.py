"""What pages lead to exists: links and headings, files, tests, verbs of ``./dev``, profiles of Compose."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.docs.worlds import ROOT

DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(ROOT / name / "README.md" for name in ("deploy", "pulsar-plugin")),
    *sorted(DOCS.rglob("*.md")),
]
#: Decisions name files as they were.
CURRENT = [path for path in PAGES if path.parent.name != "decisions" and path.name != "CHANGELOG.md"]


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Headings as code hosts name them: lower case, punctuation dropped, blanks as hyphens."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text(encoding="utf-8")), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain)


def broken_links(path: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text(encoding="utf-8"))):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if re.match(r"[a-z+]+:", link):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_links_lead_to_files_and_headings() -> None:
    assert {str(path): links for path in PAGES if (links := broken_links(path))} == {}


def test_broken_files_and_headings_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `heading`, here\n\n[1](#a-heading-here) [2](#elsewhere) [3](absent.md) [4](https://example.org/x)\n"
        "```text\n# no heading\n[5](absent-too.md)\n```\n[6](page.md#no-heading)\n",
        encoding="utf-8",
    )
    assert broken_links(page) == ["#elsewhere", "absent.md", "page.md#no-heading"]


#: Question of a newcomer -> the page with the answer.
QUESTIONS = {
    "how to keep seven days": "how-to/keeping-seven-days.md",
    "why a stream is behind": "how-to/stream-behind.md",
    "what an error means": "reference/errors.md",
    "how to read one hour from Python": "how-to/read-python.md",
    "how to undo a deletion": "how-to/undoing.md",
    "how to go back to Pulsar's own offloader": "how-to/back-to-pulsar.md",
}


def clicks_to(page: Path) -> int:
    """Links to follow from the README."""
    reached, count = {ROOT / "README.md"}, 0
    while page not in reached:
        texts = ((path, without_code(path.read_text(encoding="utf-8"))) for path in reached)
        links = {(path.parent / link).resolve() for path, text in texts for link in re.findall(r"\]\(([^)\s#]+)", text)}
        assert not links <= reached, f"no link leads to {page}"
        reached |= {each for each in links if each.suffix == ".md" and each.is_file()}
        count += 1
    return count


@pytest.mark.parametrize("question", QUESTIONS)
def test_answer_is_at_most_three_clicks_from_the_readme(question: str) -> None:
    assert clicks_to(DOCS / QUESTIONS[question]) <= 3


def test_readme_is_short() -> None:
    assert len(without_code((ROOT / "README.md").read_text(encoding="utf-8")).split()) <= 700


def test_guides_are_short() -> None:
    words = {
        path.name: len(without_code(path.read_text(encoding="utf-8")).split()) for path in DOCS.glob("how-to/*.md")
    }
    assert {name: count for name, count in words.items() if count > 1200} == {}


#: A rule in the specification, and where code or a test cites one.
RULE = re.compile(r"\*\*([MRD]\d+)\.")
CITED = re.compile(r"\b(?:[Rr]ules?|[Ss]teps?) ([MRD]\d+)(?: (?:to|and) ([MRD]\d+))?")


def specified(name: str) -> list[str]:
    return RULE.findall((DOCS / "explanation" / name).read_text(encoding="utf-8"))


def test_rules_are_numbered_in_order_without_gaps() -> None:
    for name, letters in (("manifest.md", "MD"), ("retention.md", "R")):
        for letter in letters:
            found = [rule for rule in specified(name) if rule[0] == letter]
            assert found == [f"{letter}{number}" for number in range(1, len(found) + 1)], name
            assert len(found) >= 9, name


@pytest.mark.slow
def test_cited_rules_are_specified() -> None:
    known = {*specified("manifest.md"), *specified("retention.md")}
    cited = {
        (str(path.relative_to(ROOT)), rule)
        for folder in ("formats", "offloader", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for found in CITED.findall(path.read_text(encoding="utf-8"))
        for rule in found
        if rule
    }
    assert len(cited) >= 10
    assert {each for each in cited if each[1] not in known} == set()


def test_site_shows_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    shown = [
        ROOT / name.removeprefix("project/") if name.startswith("project/") else DOCS / name
        for name in re.findall(r"- (?:[\w ]+: )?(\S+\.md)$", nav, re.M)
    ]
    assert sorted(shown) == sorted(PAGES)


def test_files_named_in_pages_exist() -> None:
    folders = "tests|docs|services|offloader|formats|deploy|benchmarks|pulsar-plugin|\\.github|\\.ci"
    named = re.compile(rf"`((?:{folders})/[\w./-]*\w/?)`")
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in CURRENT
        for name in named.findall(path.read_text(encoding="utf-8"))
        if "NAME" not in name and not (ROOT / name).exists()
    }
    assert missing == set()


def test_dev_verbs_named_in_pages_exist() -> None:
    usage = (ROOT / "dev").read_text(encoding="utf-8").partition("usage() {")[2].partition("\n}\n")[0]
    known = set(re.findall(r"^  ([a-z]+)  ", usage, re.M))
    named = {verb for path in CURRENT for verb in re.findall(r"\./dev ([a-z]+)", path.read_text(encoding="utf-8"))}
    assert {"demo", "test"} <= named <= known


def test_compose_profiles_named_in_pages_exist() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"].values()
    text = "".join(path.read_text(encoding="utf-8") for path in CURRENT)
    named = set(re.findall(r"docker compose --profile (\w+)", text))
    assert named
    assert named <= {name for service in services for name in service.get("profiles", ())}


def test_demo_line_against_minio_has_the_keys_of_the_compose_file() -> None:
    text = (DOCS / "tutorials" / "demo.md").read_text(encoding="utf-8")
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    (line,) = re.findall(r"^AWS_ACCESS_KEY_ID=.*$", text, re.M)
    values = re.fullmatch(
        r"AWS_ACCESS_KEY_ID=(\S+) AWS_SECRET_ACCESS_KEY=(\S+) \./dev demo "
        r"--store s3://([^/]+)/\S+ --endpoint-url http://127\.0\.0\.1:(\d+)",
        line,
    )
    assert values is not None
    assert [value for value in values.groups() if value not in compose] == []


#: What a row of the pages about proposals may say of a sentence.
STATES = {"done", "differently", "not yet", "out of scope"}


def sentences(page: str) -> list[list[str]]:
    """The rows of a page: number, sentence, state, how it is here, tests."""
    lines = (DOCS / "explanation" / page).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if re.match(r"\| \d+ \|", line)]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    return rows


@pytest.mark.parametrize(("page", "count"), [("pip-76.md", 125), ("pravega.md", 148)])
def test_each_sentence_of_a_proposal_has_a_state_and_tests_that_exist(page: str, count: int) -> None:
    rows = sentences(page)
    assert len(rows) == count
    wrong = []
    for row in rows:
        assert len(row) == 5, row
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row[4])
        if row[2] not in STATES or (row[2] in ("done", "differently") and not named):
            wrong.append(f"{row[0]}: {row[2]}, no test")
        for path, name in named:
            text = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""
            if not re.search(rf"^ *(?:def|class) {name or 'test_'}", text, re.M):
                wrong.append(f"{row[0]}: {path}::{name}")
    assert wrong == []
