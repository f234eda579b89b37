"""The document that compares: results into Markdown, wins and losses alike.

It doesn't say what isn't in the results: the same results make the same document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.kinds import KINDS, Kind
from benchmarks.peers.picture import draw, plain
from benchmarks.peers.readable import PER_S

__all__ = ["COLUMNS", "Column", "rendered", "value_of", "with_figures", "write_report"]

#: A peer that is better by less than that isn't said to be.
_SAME = 1.05
_MISSING = "not measured"
_OURS = ("ours", "spark-ours")
_TEMPLATE = Path(__file__).with_name("report.md")
#: The peers in README's table, in its order.
_IN_README = ("pulsar", "ours")
#: The figures of each part, which this comparison doesn't measure.
_PARTS = Path(__file__).parents[1] / "parts.md"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table.

    Attributes:
        key: of what it is made of; the reason why a peer lacks it is under the same key.
        title: above it.
        figures: paths into a peer's results, and how each is written (empty: as `plain` does).
        name: in sentences; empty: nothing is said of it.
        more_is_better: of its first figure.
    """

    key: str
    title: str
    figures: tuple[tuple[str, ...], ...]
    form: str
    name: str = ""
    more_is_better: bool = False


COLUMNS = (
    Column("offload", "offload, MB/s", (("offload", "mb_s"),), "{:.0f}", "offloading", True),
    Column("read", "read, MB/s", (("read", "mb_s"),), "{:.0f}", "reading", True),
    Column(
        "single",
        "one entry, ms: median, 99th percentile",
        (("single", "median_ms"), ("single", "p99_ms")),
        "",
        "a single entry",
    ),
    Column(
        "offload",
        "requests to offload a GiB: PUTs, GETs",
        (("offload", "puts_per_gib"), ("offload", "gets_per_gib")),
        "{:.0f}",
    ),
    Column("read", "GETs to read a GiB", (("read", "gets_per_gib"),), "{:.0f}"),
    Column("offload", "price to offload a GiB, $", (("offload", "usd_per_gib"),), "{:.5f}", "the price of offloading"),
    Column("read", "price to read a GiB, $", (("read", "usd_per_gib"),), "{:.5f}", "the price of reading"),
    Column("stored", "bytes stored for each offered", (("stored_per_byte",),), "{:.4f}", "bytes stored"),
    Column(
        "offload",
        "client's processor to offload a GB, s",
        (("offload", "cpu_s_per_gb"),),
        "{:.1f}",
        "the client's processor to offload",
    ),
    Column(
        "read",
        "client's processor to read a GB, s",
        (("read", "cpu_s_per_gb"),),
        "{:.1f}",
        "the client's processor to read",
    ),
    Column("offload", "memory to offload, MiB", (("offload", "memory_mib"),), "{:.0f}", "memory to offload"),
    Column("read", "memory to read, MiB", (("read", "memory_mib"),), "{:.0f}", "memory to read"),
    Column(
        "readable",
        "append to readable, s: median, 99th percentile",
        (("readable", "median_s"), ("readable", "p99_s")),
        "{:.2f}",
        "the time until an entry is readable in the tier",
    ),
)


def value_of(document: Mapping[str, Any], name: str, delay_ms: str, path: tuple[str, ...]) -> float | None:
    """A figure of a peer; ``None``: there is none."""
    if path[0] == "readable":
        found: Any = document["readable"].get(name, {}).get(delay_ms)
        path = path[1:]
    else:
        found = document["cells"].get(name, {}).get(delay_ms)
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    figure: float | None = found
    return figure


def write_report(document: Mapping[str, Any], path: Path, readme: Path) -> None:
    """The document at ``path`` and its picture beside it, and the table in ``readme``."""
    path.write_text(rendered(document), encoding="utf-8")
    draw(document, path.with_name("benchmarks.png"))
    readme.write_text(with_figures(readme.read_text(encoding="utf-8"), document), encoding="utf-8")


def with_figures(text: str, document: Mapping[str, Any]) -> str:
    """README with the first figure of each column that its table has, of ``_IN_README`` without added delay."""
    columns = {column.title.partition(":")[0]: column for column in COLUMNS}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        name = line.strip("| ").partition(" |")[0]
        if line.startswith("| ") and name in columns:
            column = columns[name]
            values = [value_of(document, kind, "0", column.figures[0]) for kind in _IN_README]
            cells = [
                _MISSING if value is None else column.form.format(value) if column.form else plain(value)
                for value in values
            ]
            lines[number] = f"| {name} | {' | '.join(cells)} |"
    return "\n".join(lines) + "\n"


def rendered(document: Mapping[str, Any]) -> str:
    """The whole document."""
    names = [name for name in KINDS if name in document["cells"]]
    delays = sorted({delay for cells in document["cells"].values() for delay in cells}, key=int)
    values = {
        **document["conditions"],
        **document["machine"],
        **document["machine"]["limits"],
        "delays": _listed([f"{delay} ms" for delay in delays]),
        "table": "\n".join(_table(document, names, delays)),
        "peers": "\n".join(f"* {KINDS[name].title}: {KINDS[name].note}." for name in names),
        "per_s": PER_S,
        "put": document["conditions"]["put_usd"] * 1000,
        "get": document["conditions"]["get_usd"] * 1000,
        "losses": "\n".join(_compared(document, names, delays, better=True)) or "Nowhere in these results.",
        "wins": "\n".join(_compared(document, names, delays, better=False)),
        "versions": ", ".join(f"{name} {each}" for name, each in sorted(document["machine"]["versions"].items())),
        "days": _listed(sorted(_days(document))),
    }
    compared = _TEMPLATE.read_text(encoding="utf-8").format(**values)
    return f"{compared}\n{_PARTS.read_text(encoding='utf-8')}"


def _days(document: Mapping[str, Any]) -> set[str]:
    return {
        cell["measured"] for part in ("cells", "readable") for each in document[part].values() for cell in each.values()
    }


def _table(document: Mapping[str, Any], names: list[str], delays: list[str]) -> Iterator[str]:
    yield "| " + " | ".join(["", *(KINDS[name].title for name in names)]) + " |"
    yield "| --- |" + " ---: |" * len(names)
    for column in COLUMNS:
        cells = [_cell(document, column, name, delays) for name in names]
        yield f"| {column.title} | " + " | ".join(cells) + " |"


def _cell(document: Mapping[str, Any], column: Column, name: str, delays: list[str]) -> str:
    lacks = KINDS[name].lacks.get(column.key)
    if lacks:
        return lacks
    shown = []
    for delay in delays:
        values = [value_of(document, name, delay, path) for path in column.figures]
        shown.append(
            _MISSING
            if None in values
            else ", ".join(
                column.form.format(value) if column.form else plain(value) for value in values if value is not None
            )
        )
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def _beside_ours(
    document: Mapping[str, Any], names: list[str], delays: list[str]
) -> Iterator[tuple[Column, str, str, float]]:
    """Every figure beside ours: column, peer, distance, how many times better than ours it is."""
    for column in COLUMNS:
        for name in names if column.name else ():
            for delay in delays:
                if name in _OURS or column.key in KINDS[name].lacks:
                    continue
                ours = value_of(document, KINDS[name].beside, delay, column.figures[0])
                theirs = value_of(document, name, delay, column.figures[0])
                if not ours or not theirs:
                    continue
                yield column, name, delay, theirs / ours if column.more_is_better else ours / theirs


def _compared(document: Mapping[str, Any], names: list[str], delays: list[str], *, better: bool) -> Iterator[str]:
    """A line for each column in which peers are better (or worse) than ours."""
    found = []
    for column, name, delay, factor in _beside_ours(document, names, delays):
        times = factor if better else 1 / factor
        if times > _SAME:
            found.append((column, name, delay, times))
    for column in dict.fromkeys(column for column, *_ in found):
        yield f"* **{column.name.capitalize()}**: {_named(found, column)}."


def _named(found: list[tuple[Column, str, str, float]], column: Column) -> str:
    """``bare boto3 1.2 times (0 ms), 1.1 times (30 ms)``, peer after peer."""
    by_name: dict[str, list[str]] = {}
    for other, name, delay, factor in found:
        if other is column:
            by_name.setdefault(name, []).append(f"{plain(factor)} times ({delay} ms)")
    return "; ".join(f"{_peer(KINDS[name])} {', '.join(factors)}" for name, factors in by_name.items())


def _peer(kind: Kind) -> str:
    return kind.title if kind.beside == "ours" else f"{kind.title} beside {KINDS[kind.beside].title}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
