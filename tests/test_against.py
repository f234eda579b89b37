"""``./dev test --against``: a test proves something only if it fails by the earlier product's behaviour."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.against import How, listed_tests, main
from tests.support.quick import needs

NEW = "tests/test_new.py"
EARLIER = "def double(number):\n    if number > 9:\n        raise ValueError('too large')\n    return number\n"
NOW = "def double(number, times=2):\n    return number * times\n\n\ndef triple(number):\n    return number * 3\n"
TESTS = """
import pytest
import offloader


def test_asserts():
    assert offloader.double(2) == 4


@pytest.mark.parametrize("number", [0, 10])
def test_has_parameters(number):
    assert offloader.double(number) == 2 * number


def test_expects_an_error():
    with pytest.raises(TypeError):
        offloader.double(1)


def test_misses_an_attribute():
    assert offloader.triple(1) == 3


def test_passes_an_unknown_argument():
    assert offloader.double(1, times=3) == 3


def test_imports_what_is_new():
    from offloader import triple

    assert triple(1) == 3
"""


@pytest.fixture
@needs("process")
def root(tmp_path: Path) -> Path:
    """A small project whose newest commit has the earlier product, and the later one in the working tree."""
    root = tmp_path / "project"
    for name, text in {
        "offloader/__init__.py": EARLIER,
        "tests/test_old.py": "def test_that_is_gone_by_now():\n    pass\n",
    }.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "--message", "Begin"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    (root / "offloader/__init__.py").write_text(NOW)
    (root / "tests/test_old.py").unlink()
    (root / "tests/test_new.py").write_text(TESTS)
    (root / "tests/test_import.py").write_text(
        "from offloader import triple\n\n\ndef test_triple():\n    assert triple\n"
    )
    return root


def run(root: Path, *lines: str) -> int:
    listed = root.parent / "list.txt"
    listed.write_text("# what is proven\n" + "\n".join(lines) + "\n")
    return main(["HEAD", str(listed)], root=root)


def said(capfd: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Test -> how it ended, and why."""
    lines = capfd.readouterr().out.splitlines()
    return {
        line[15:]: (line[:13].strip(), after.strip())
        for line, after in pairwise(lines)
        if line.startswith(tuple(how.value for how in How))
    }


def test_assertions_and_errors_of_the_product_prove_something(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tests = [f"{NEW}::test_asserts", f"{NEW}::test_has_parameters[10]", f"{NEW}::test_expects_an_error"]
    assert run(root, *(f"{test}  # so" for test in tests)) == 0
    found = said(capfd)
    assert [found[test] for test in tests] == [
        ("assertion", "AssertionError: assert 2 == 4"),
        ("product error", "ValueError: too large"),
        ("assertion", "Failed: DID NOT RAISE TypeError"),
    ]
    assert not any((root / ".git/worktrees").glob("*")), "the worktree is gone"


def test_other_failures_than_assertions_and_product_errors_prove_nothing(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = {
        f"{NEW}::test_asserts": ("assertion", "AssertionError"),
        f"{NEW}::test_has_parameters[0]": ("PASSES", ""),
        f"{NEW}::test_misses_an_attribute": ("OTHERWISE", "AttributeError"),
        f"{NEW}::test_passes_an_unknown_argument": ("OTHERWISE", "TypeError"),
        f"{NEW}::test_imports_what_is_new": ("OTHERWISE", "ImportError"),
        "tests/test_import.py::test_triple": ("OTHERWISE", "ImportError"),
        "tests/test_old.py::test_that_is_gone_by_now": ("OTHERWISE", "not collected"),
    }
    assert run(root, *expected) == 1
    found = said(capfd)
    assert {test: how for test, (how, _) in found.items()} == {test: how for test, (how, _) in expected.items()}
    assert all(reason in found[test][1] for test, (_, reason) in expected.items())


def test_an_unknown_commit_is_an_error(root: Path) -> None:
    listed = root.parent / "list.txt"
    listed.write_text("tests/test_new.py\n")
    assert main(["no-such-commit", str(listed)], root=root) == 2


def test_a_list_may_have_comments_and_empty_lines() -> None:
    assert listed_tests("# a\n\ntests/a.py::test_b  # why\n  tests/a.py::test_c[x]\ntests/a.py::test_b\n") == [
        "tests/a.py::test_b",
        "tests/a.py::test_c[x]",
    ]
