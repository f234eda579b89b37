"""``serve`` without the packages of its HTTP listener: said by every verb that looks at the settings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offloader.cli.errors import failure_of
from offloader.doctor import Outcome, run_checks
from offloader.errors import ErrorKind
from offloader.service.bootstrap import check_access
from offloader.settings import Settings
from tests.cli.reading_verbs import Offloader

HINT = "in a checkout of offloader: pip install -c constraints.txt '.[serve]'"


def config(folder: Path, more: str) -> str:
    path = folder / "offloader.toml"
    path.write_text(f'[serve]\nstore = "file://{folder}"\nmaintenance = true\n{more}')
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["anyio", "fastapi", "h11", "starlette", "uvicorn"])
def test_missing_packages_are_named_before_anything_is_served(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    listening = config(tmp_path, '[http]\nlisten = "127.0.0.1:0"\n')
    for more in ([], ["--check"]):
        code, line, hint = Offloader(capsys).refuses("serve", "--config", listening, *more)
        assert (code, hint) == (2, HINT)
        assert line == f"http.listen needs packages that aren't installed: {package}"
    settings = Settings.of({"http": {"listen": "127.0.0.1:0"}})
    [found] = run_checks([("access", check_access(settings))])
    assert (found.outcome, package in found.what, found.hint) == (Outcome.PROBLEM, True, HINT)


def test_packages_are_not_needed_without_a_listener(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "anyio", None)
    assert Offloader(capsys)("serve", "--check", "--config", config(tmp_path, "")).code == 0


@pytest.mark.parametrize("package", ["anyio.to_thread", "starlette.types", "h11"])
def test_missing_package_of_the_extra_is_no_bug(package: str) -> None:
    failure = failure_of(ModuleNotFoundError(f"No module named {package!r}", name=package))
    assert (failure.kind, failure.hint) == (ErrorKind.INVALID_REQUEST.name.lower(), HINT)
