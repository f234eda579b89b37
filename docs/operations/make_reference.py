"""Writes REFERENCE.md and offloader.toml: every error kind, metric, setting and fixed limit, as the code has them.

Owns how they are laid out. Must never say anything that the code doesn't.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import yaml

import formats
import offloader
from offloader.errors import ErrorKind, OffloaderError
from offloader.settings import Settings
from offloader.settings.layered import PROCESS_SECTIONS, PROCESS_SETTINGS
from offloader.settings.sample import sample_settings
from offloader.telemetry.recorder import METRICS

__all__ = ["reference"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Not part of what runs.
LEFT_OUT = ("offloader.testing", "formats.metadata")
HEAD = """# Reference for operators

Every error, metric, setting and fixed limit of this release. Made by `./dev reference` out of the code: don't edit it.
What to do about an alert is in [README.md](README.md).
"""
KIB = 1024


def _modules() -> Iterator[str]:
    """Names of everything that is shipped, except for what is for tests."""
    for package in (formats, offloader):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(LEFT_OUT) and not found.name.endswith("__main__"):
                yield found.name


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = list(head)
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join('---' for _ in names)} |"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _first_paragraph(doc: str | None) -> str:
    return (doc or "").strip().partition("\n\n")[0]


def _errors() -> Iterator[str]:
    yield "## Errors and exit codes\n"
    yield "A command that fails says what, where and why in one line, then what to do; its exit code is its kind's."
    yield 'With `--json` that is `{"error": {kind, error, message, hint, exit_code}}`.\n'
    yield from _table(
        ("exit code", "kind", "what to do"), ((str(k.value), f"`{k.name.lower()}`", k.advice) for k in ErrorKind)
    )
    yield "\nA command that is interrupted ends with 130, one whose reader went away with 141. Bytes that"
    yield "can't be decoded (`formats.errors`) are `repair_data` too.\n"
    found = [OffloaderError]
    for kind in found:
        found += [each for each in kind.__subclasses__() if each not in found]
    modules = set(_modules())
    shipped = [each for each in found[1:] if each.__module__ in modules]
    shown = [each for each in shipped if not each.__name__.startswith("_")]
    shown.sort(key=lambda each: (each.kind.value, each.__name__))
    yield from _table(
        ("error", "kind", "exit code", "what it says"),
        (
            (f"`{each.__name__}`", f"`{each.kind.name.lower()}`", str(each.kind.value), _first_paragraph(each.__doc__))
            for each in shown
        ),
    )


def _alerts_by_metric() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for group in yaml.safe_load((HERE / "alerts.yml").read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            for name in dict.fromkeys(re.findall(r"offloader_(\w+)", rule["expr"])):
                found.setdefault(name, []).append(rule["alert"])
    return found


def _metrics() -> Iterator[str]:
    yield "## Metrics\n"
    yield '`topic` is a label with `telemetry.labels = "topic"` only.\n'
    alerts = _alerts_by_metric()
    yield from _table(
        ("metric", "kind", "labels", "what", "alerts"),
        (
            (
                f"`offloader_{metric.name}`",
                metric.kind,
                ", ".join(metric.labels) or "-",
                metric.help,
                ", ".join(alerts.get(metric.name, ["-"])),
            )
            for metric in METRICS.values()
        ),
    )


def _range(field: Field[Any]) -> str:
    found = field.metadata
    if "choices" in found:
        return ", ".join(found["choices"])
    if "flag" in found:
        return "true, false"
    if "low" in found:
        return f"{found['low']} to {found['high']}"
    if "places" in found:
        return "file:PATH, env:NAME"
    return "a text" if "text" in found else "texts" if "texts" in found else "a table of texts"


def _settings() -> Iterator[str]:
    yield "## Settings\n"
    yield "`offloader config explain` says where values come from. A setting of a process can't differ between streams."
    for section in fields(Settings):
        values = getattr(Settings(), section.name)
        yield f"\n### {section.name}\n\n{_first_paragraph(type(values).__doc__)}\n"
        rows = []
        for field in fields(values):
            default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            of_process = section.name in PROCESS_SECTIONS or f"{section.name}.{field.name}" in PROCESS_SETTINGS
            rows.append(
                (
                    f"`{section.name}.{field.name}`",
                    "(empty)" if default in ("", "()") else default,
                    _range(field),
                    "process" if of_process else "stream",
                    field.metadata["doc"],
                )
            )
        yield from _table(("setting", "default", "allowed", "of", "what"), rows)


def _named_limits(path: Path) -> Iterator[tuple[str, str]]:
    """Names of a module that end in ``_MAX``, and the comment for readers that stands above each."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for node in ast.parse("\n".join(lines)).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]*_MAX", target.id):
            comment: list[str] = []
            at = node.lineno - 2
            while at >= 0 and lines[at].startswith("#:"):
                comment.insert(0, lines[at].removeprefix("#:").strip())
                at -= 1
            if comment:
                yield target.id, " ".join(comment)


def _amount(name: str, value: object) -> str:
    if "BYTES" not in name or not isinstance(value, int) or value % KIB:
        return f"{value:,}" if isinstance(value, int) else str(value)
    for unit in ("KiB", "MiB", "GiB"):
        value //= KIB
        if value < KIB or value % KIB:
            return f"{value:,} {unit}"
    return f"{value // KIB:,} TiB"


def _limits() -> Iterator[str]:
    yield "## Fixed limits\n"
    yield "Bounds that no setting moves: what is queued, kept, tried again or taken from outside ends at one of them.\n"
    rows = []
    for name in sorted(_modules()):
        module = sys.modules[name]
        for limit, comment in _named_limits(Path(str(module.__file__))):
            value = getattr(module, limit)
            if isinstance(value, int | float):
                rows.append((f"`{name}.{limit}`", _amount(limit, value), comment))
    yield from _table(("limit", "value", "what"), rows)


def reference() -> str:
    """The text of REFERENCE.md."""
    for name in _modules():
        importlib.import_module(name)
    parts = (_errors(), _metrics(), _settings(), _limits())
    return "\n".join([HEAD, *("\n".join([*part, ""]) for part in parts)])


def unknown_metrics() -> list[str]:
    """Names that alerts or dashboard use and that nothing measures."""
    used = "".join((HERE / name).read_text(encoding="utf-8") for name in ("alerts.yml", "grafana-dashboard.json"))
    known = {f"{name}{suffix}" for name in METRICS for suffix in ("", "_bucket")}
    return sorted(set(re.findall(r"\boffloader_(\w+)", used)) - known)


def main(arguments: list[str]) -> int:
    """Writes the files; with ``--check`` only says whether they are current. Alerts and dashboard are looked at too."""
    wrong = 0
    if unknown_metrics():
        sys.stderr.write(f"docs/operations: alerts.yml or grafana-dashboard.json: unknown {unknown_metrics()}\n")
        wrong = 1
    for path, text in ((HERE / "REFERENCE.md", reference()), (HERE / "offloader.toml", sample_settings())):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in arguments:
            sys.stderr.write(f"docs/operations/{path.name} isn't what the code says\n")
            wrong = 1
        else:
            path.write_text(text, encoding="utf-8")
    return wrong


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
