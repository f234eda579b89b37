"""docs/explanation/security.md is true: no secrets, exceptions with reasons, bounded dependencies."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Shapes of secrets that somebody could use.
SECRETS = {
    "an access key of AWS": re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\n[A-Za-z0-9+/=\n]{60}"),
    "a token of GitHub": re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36}\b"),
    "a key of Google": re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b"),
    "a token of Slack": re.compile(r"\bxox[abprs]-[0-9A-Za-z-]{10,}"),
    "a signed token": re.compile(r"\beyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"),
    "a key in base64": re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}==(?![A-Za-z0-9+/=])"),
}
#: Known to everybody: azurite's one account, out of Microsoft's documents.
PUBLIC = {"Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="}


def tracked_texts() -> list[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        data = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        if b"\0" not in data and not name.endswith(".jsonl"):  # recorded entries are base64
            found.append((name, data.decode("utf-8", "replace")))
    return found


def secrets_in(text: str) -> list[str]:
    return [what for what, shape in SECRETS.items() for match in shape.finditer(text) if match[0] not in PUBLIC]


@pytest.mark.process
def test_no_file_of_the_repository_holds_a_secret() -> None:
    texts = tracked_texts()
    assert len(texts) > 300
    found = [f"{name}: {what}" for name, text in texts for what in secrets_in(text)]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "key = AKIA" + "ABCDEFGHIJKLMNOP",
        "-----BEGIN RSA " + "PRIVATE KEY-----\n" + "A" * 64,
        "ghp_" + "a1" * 18,
        "eyJ" + "a" * 30 + ".eyJ" + "b" * 30 + "." + "c" * 30,
        "x" * 86 + "==",
    ],
)
def test_secret_search_finds_planted_secrets(text: str) -> None:
    assert secrets_in(f"before\n{text}\nafter")


@pytest.mark.slow
def test_each_security_rule_exception_has_a_reason() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in rules["select"]
    shipped = {
        name for name, codes in rules["per-file-ignores"].items() if "S" in codes and name.startswith("offloader")
    }
    assert shipped == set()
    wrong = []
    for package in ("formats", "offloader"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(r"noqa:[^#]*\bS\d{3}", line) and not re.search(r"noqa: [A-Z0-9, ]+ - \S", line):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}")
    assert wrong == []


def test_dependencies_are_bounded_and_every_tested_version_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(each for some in project["optional-dependencies"].values() for each in some)]
    needed = [each for each in needed if not each.startswith("offloader[")]
    assert [each for each in needed if ">=" not in each or "@" in each] == []
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), line
            pinned[re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()] = line
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[><=]", each)[0]).lower() for each in needed}
    assert sorted(names - set(pinned)) == []


@pytest.mark.slow
def test_shipped_code_evaluates_no_text_and_loads_no_pickles() -> None:
    calls = re.compile(
        r"(?<![\w.])(eval|exec|compile)\(|pickle\.loads?\(|marshal\.loads?\(|shell=True|yaml\.(unsafe_)?load\("
    )
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for package in ("formats", "offloader")
        for path in sorted((ROOT / package).rglob("*.py"))
        for match in calls.finditer(path.read_text())
    ]
    assert found == []
