"""Writes what is generated from the code: pages of the reference, sample settings and the picture of the layers."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

import formats
import offloader
from docs.layers_picture import layers_picture
from offloader.cli.help import EXAMPLES, examples_of
from offloader.cli.main import program
from offloader.cli.options import COMMON
from offloader.cli.tree import TREE, Command
from offloader.errors import ErrorKind, OffloaderError
from offloader.settings import Settings
from offloader.settings.fields import allowed, in_file
from offloader.settings.layered import ALIASES, is_of_process, sample_settings
from offloader.settings.pulsar_names import TRANSLATED
from offloader.telemetry.recorder import METRICS

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
DEPLOY = ROOT / "deploy"
#: Not part of what runs.
LEFT_OUT = ("offloader.testing", "formats.metadata")
GENERATED = "Generated from the code by `./dev reference`; don't edit it."
KIB = 1024

#: Kind of a field that is no number -> its type in a settings file.
_TYPES = {
    "choices": "choice",
    "text": "text",
    "pairs": "table of texts",
    "texts": "list of texts",
    "places": "list of texts",
    "flag": "flag",
}


def type_of(metadata: Mapping[str, Any], default: object) -> str:
    """The type of a field in a settings file, in one or two words."""
    if "quantity" in metadata:
        return str(metadata["quantity"].name)
    number = "integer" if isinstance(default, int) else "number"
    return next((name for kind, name in _TYPES.items() if kind in metadata), number)


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
    yield f"# Errors and exit codes\n\n{GENERATED}\n"
    yield "A command that fails says what, where and why in one line, then what to do; its exit code is its kind's."
    yield 'With `--json` that is `{"error": {kind, error, message, hint, exit_code}}`.\n'
    yield from _table(
        ("exit code", "kind", "what to do"), ((str(k.value), f"`{k.name.lower()}`", k.advice) for k in ErrorKind)
    )
    yield "\nA command that is interrupted ends with 130, one whose reader went away with 141. Bytes that"
    yield "can't be decoded (`formats.errors`) are `data_corruption` too.\n"
    yield "In Python, the errors are in `offloader.errors`, with `OffloaderError` as their base. An error also derives"
    yield "from the builtin class in its row: `except LookupError` catches `TrimmedError` too. The attributes `errno`,"
    yield "`strerror` and `filename` of an `AccessDeniedError` are `None`; use `message` and `hint`.\n"
    found = [OffloaderError]
    for kind in found:
        found += [each for each in kind.__subclasses__() if each not in found]
    modules = set(_modules())
    shipped = [each for each in found[1:] if each.__module__ in modules]
    shown = [each for each in shipped if not each.__name__.startswith("_")]
    shown.sort(key=lambda each: (each.kind.value, each.__name__))
    yield from _table(
        ("error", "kind", "exit code", "builtin class", "what it says"),
        (
            (
                f"`{each.__name__}`",
                f"`{each.kind.name.lower()}`",
                str(each.kind.value),
                _builtin_of(each),
                _first_paragraph(each.__doc__),
            )
            for each in shown
        ),
    )


def _builtin_of(error: type[OffloaderError]) -> str:
    """The builtin class that an error also derives from; empty: only ``Exception``."""
    found = next(each for each in error.__mro__ if each.__module__ == "builtins")
    return "" if found is Exception else f"`{found.__name__}`"


def _alerts_by_metric() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            for name in dict.fromkeys(re.findall(r"offloader_(\w+)", rule["expr"])):
                found.setdefault(name, []).append(rule["alert"])
    return found


def _metrics() -> Iterator[str]:
    yield f"# Metrics\n\n{GENERATED} What to do about an alert: [alerts](../how-to/alerts.md).\n"
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


def _settings() -> Iterator[str]:
    yield f"# Settings\n\n{GENERATED} [offloader.toml](../../deploy/offloader.toml) has them as a file to begin with.\n"
    yield "`offloader config explain` says where values come from. A setting of a process can't differ between streams."
    yield "A duration is a number and its unit, ms, s, m, h or d; a size likewise, B, KiB, MiB, GiB or TiB. In Python,"
    yield "`offloader.Settings.of` takes the same names and values; an amount may also be a number of seconds or bytes."
    yield "Names of PIP-76 are aliases, with numbers in the unit that the name ends in:"
    yield f"{', '.join(f'`{name}`' for name in sorted(ALIASES))}."
    yield "`streaming_offload` (true or false) is one of `offload.method`. Their names in camel case are aliases too,"
    yield "at the top of a table or in the setting's section, with Pulsar's numbers and units:"
    yield f"{', '.join(f'`{name}`' for name in (*TRANSLATED, 'streamingOffload'))}. Pulsar's other offload settings are"
    yield "refused, and the error names the setting to use: a driver and a bucket, for example, are one `serve.store`."
    yield "A topic's table may have the topic's name, `persistent://tenant/namespace/topic`, or the stream's."
    for section in fields(Settings):
        values = getattr(Settings(), section.name)
        yield f"\n## {section.name}\n\n{_first_paragraph(type(values).__doc__)}\n"
        rows = []
        for field in fields(values):
            name = f"{section.name}.{field.name}"
            shown_default = in_file(field.default)
            default = str(shown_default).lower() if isinstance(shown_default, bool) else str(shown_default)
            rows.append(
                (
                    f"`{name}`",
                    type_of(field.metadata, field.default),
                    "(empty)" if default in ("", "()") else default,
                    allowed(field.metadata),
                    "process" if is_of_process(name) else "stream",
                    field.metadata["doc"],
                )
            )
        yield from _table(("setting", "type", "default", "allowed", "of", "what"), rows)


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
    yield f"# Fixed limits\n\n{GENERATED}\n"
    yield "Bounds that no setting moves: what is queued, kept, tried again or taken from outside ends at one of them.\n"
    rows = []
    for name in sorted(_modules()):
        module = sys.modules[name]
        for limit, comment in _named_limits(Path(str(module.__file__))):
            value = getattr(module, limit)
            if isinstance(value, int | float):
                rows.append((f"`{name}.{limit}`", _amount(limit, value), comment))
    yield from _table(("limit", "value", "what"), rows)


def _python() -> Iterator[str]:
    yield f"# Python\n\n{GENERATED}\n"
    yield "`import offloader` has these names and loads each at its first use. A position is a ledger id and an entry"
    yield "id. Times are milliseconds since 1970 UTC and sizes are bytes, unless a name says otherwise."
    yield "[errors.md](errors.md) has every error, [settings.md](settings.md) every setting."
    for name in sorted(offloader.__all__, key=str.lower):
        value = getattr(offloader, name)
        if inspect.ismodule(value):
            for inner in () if value is offloader.errors else value.__all__:
                yield from _described(f"offloader.{name}.{inner}", getattr(value, inner), "##")
        elif not name.startswith("_"):
            yield from _described(f"offloader.{name}", value, "##")


def _described(name: str, value: Any, heading: str) -> Iterator[str]:
    """A heading, the signature and the docstring of a class, function or property, and a class's own public members."""
    short = name.rpartition(".")[2]
    yield f"\n{heading} {name if heading == '##' else short}\n"
    if callable(value):
        yield f"```text\n{_signature(short, value)}\n```\n"
    doc = inspect.getdoc(value) or ""
    yield "\n\n".join("" if doc.startswith("Alias for") else part for part in _paragraphs(doc))
    if inspect.isclass(value):
        for inner, member in vars(value).items():
            member = getattr(member, "__func__", member)
            is_shown = inspect.isfunction(member) or isinstance(member, property)
            if is_shown and not inner.startswith("_") and member.__doc__:
                yield from _described(f"{name}.{inner}", member, "###")


class _Shown:
    """Text that stands in a signature without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _signature(name: str, value: Any) -> str:
    """As in a call; a default whose text would name an address in memory is shown as ``...``."""
    found = inspect.signature(value)
    shown = []
    for each in found.parameters.values():
        if each.name not in ("self", "cls"):
            is_object = each.default is not each.empty and (callable(each.default) or " at 0x" in repr(each.default))
            default = _Shown("...") if is_object else each.default
            shown.append(each.replace(default=default, annotation=_annotation(each.annotation)))
    return f"{name}{found.replace(parameters=shown, return_annotation=_annotation(found.return_annotation))}"


def _annotation(found: Any) -> Any:
    if found in (None, inspect.Signature.empty) or isinstance(found, type):
        return found
    return _Shown(getattr(found, "__forward_arg__", found))


def _paragraphs(doc: str) -> Iterator[str]:
    """A docstring as Markdown: its sections as lists."""
    for part in re.split(r"\n\n+", doc):
        title, _, rest = part.partition("\n")
        if title in ("Args:", "Attributes:", "Raises:", "Returns:") and rest:
            items = re.split(r"\n(?! )", inspect.cleandoc(rest))
            yield title
            yield "\n".join(f"* {' '.join(item.split())}" for item in items)
        else:
            yield " ".join(part.split())


def _command_page(name: str, command: Command) -> Iterator[str]:
    """One command: each of its actions with usage, options and examples."""
    found = program(name).commands[name]
    yield f"# offloader {name}\n\n{GENERATED}\n"
    if not command.actions:
        yield from _usage(f"offloader {name}", found)
        return
    yield f"{command.help}\n"
    for action, leaf in found.commands.items():
        yield f"## offloader {name} {action}\n"
        yield from _usage(f"offloader {name} {action}", leaf)


def _usage(words: str, leaf: Any) -> Iterator[str]:
    about, _, rest = leaf.help.partition(f"\b\n{EXAMPLES}\n")
    for paragraph in about.strip().split("\n\n"):
        yield f"{' '.join(paragraph.split())}\n"
    context = leaf.context_class(leaf, info_name=words)
    usage = " ".join(leaf.collect_usage_pieces(context)).replace("{", "").replace("}", "")
    examples = examples_of(f"{EXAMPLES}\n{rest}")
    yield "\n".join(["```text", f"{words} {usage}", "```\n", "Examples:\n", "```text", *examples, "```\n"])
    rows = sorted(leaf.rows(context), key=lambda row: (row[0] != "Arguments", row[0] == COMMON))
    shown = ((f"`{name}`", text) for _, name, text in rows if name != "--help")
    yield from _table(("argument or option", "meaning"), shown)
    yield ""


def generated() -> dict[Path, str]:
    """Every generated file with its text."""
    for name in _modules():
        importlib.import_module(name)
    pages = {"errors": _errors(), "metrics": _metrics(), "settings": _settings(), "limits": _limits()}
    pages["python"] = _python()
    found = {REFERENCE / f"{name}.md": "\n".join([*lines, ""]) for name, lines in pages.items()}
    for commands in TREE.values():
        for name, command in commands.items():
            found[REFERENCE / "commands" / f"{name}.md"] = "\n".join([*_command_page(name, command), ""])
    picture = ROOT / "docs" / "explanation" / "layers.svg"
    return {**found, DEPLOY / "offloader.toml": sample_settings(), picture: layers_picture()}


def unknown_metrics() -> list[str]:
    """Names that alerts or dashboard use and that nothing measures."""
    used = "".join((DEPLOY / name).read_text(encoding="utf-8") for name in ("alerts.yml", "grafana-dashboard.json"))
    known = {f"{name}{suffix}" for name in METRICS for suffix in ("", "_bucket")}
    return sorted(set(re.findall(r"\boffloader_(\w+)", used)) - known)


def main(arguments: list[str]) -> int:
    """Writes the files; with ``--check`` reports files that differ. Also checks the metrics of alerts and dashboard."""
    wrong = 0
    if unknown_metrics():
        sys.stderr.write(f"deploy: alerts.yml or grafana-dashboard.json: unknown {unknown_metrics()}\n")
        wrong = 1
    for path, text in generated().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in arguments:
            sys.stderr.write(f"{path.relative_to(ROOT)} isn't current; run ./dev reference\n")
            wrong = 1
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return wrong


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
