"""Retention cycle as text and as an ASCII plot: formats the outcome, decides and loads nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from offloader.retention.cuts import StreamCut
from offloader.retention.cycle import CycleOutcome
from offloader.retention.policy import Unit, limits_text, policy_text, size_text, span_text
from offloader.retention.state import Candidate, Decision, Lag, Role, Rule
from offloader.times import time_text

WIDTH = 79
#: Indentation of each text.
_NAME = 9
#: Indentation of the plot, and the longest name there.
_LEFT = 16
#: Partitions of a cut that are written out.
_PARTITIONS_SHOWN = 3
#: Shown for a new policy without recorded cuts.
_MORE_CUTS = (
    "a limit cuts at ends of segments and at recorded places; each cycle that finds new entries records where the "
    "stream ends"
)
_ROLES = {Role.MIN: "min", Role.MAX: "max", Role.OLD: "old", Role.KEEP: "keep"}


def explain(outcome: CycleOutcome, *, done: bool = False) -> Iterator[str]:
    """Lines of the explanation, no longer than ``WIDTH`` where names allow it; worded as a plan unless ``done``."""
    yield from _said("stream", outcome.stream)
    yield from _said("policy", policy_text(outcome.policy))
    if not outcome.tail.offsets:
        yield "the stream has no entry"
        return
    yield ""
    yield from picture(outcome)
    yield ""
    for lag in outcome.lags:
        yield from _said("reader", _lag_text(lag))
    if not outcome.lags:
        yield "no subscribers"
    if (decision := outcome.decision) is None:
        return
    yield ""
    yield from _said("bound", decision.bound_kind.value)
    if decision.is_fallback and decision.limits is not None:
        yield from _said("fallback", limits_text(decision.limits))
    yield from _said("rule", decision.rule.value)
    for each in outcome.ahead:
        where = "" if each.stream == outcome.stream else f" of {each.stream}"
        yield from _said(
            "future",
            f"entries in {each.first} to {each.last}{where} have a publish time in the future, "
            f"{time_text(each.time_ms)}. By publish time no entry from there on is old enough before that time",
        )
    if decision.ruled is not None:
        yield from _said("limit", f"the limit by {decision.ruled.value} was reached first")
    if decision.is_held:
        yield from _said("held", "at the committed end: later entries aren't offloaded yet")
    if decision.broker is not None:
        yield from _said("held" if decision.broker.rules else "broker", decision.broker.words[0])
        for text in decision.broker.words[1:]:
            yield from _said("broker", text)
    yield from _verdict(outcome, decision, done=done)


def _said(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{name:<{_NAME}}",
        subsequent_indent=" " * _NAME,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _verdict(outcome: CycleOutcome, decision: Decision, *, done: bool) -> Iterator[str]:
    if decision.cut is None:
        yield from _said("result", "nothing is deleted")
        if decision.rule in (Rule.NOTHING_RECORDED, Rule.NO_CUT_KEEPS_MIN):
            yield from _said("later", _MORE_CUTS)
        return
    amount = [] if decision.removed_entries is None else [f"{decision.removed_entries:,} entries"]
    amount += [] if decision.removed_bytes is None else [size_text(decision.removed_bytes)]
    if words := boundary_words(decision):
        yield from _said("boundary", words)
    verb = "were deleted" if done and outcome.truncations else "would be deleted"
    yield from _said(
        "result", f"entries before {cut_words(decision.cut)} {verb}: {', '.join(amount) or 'amount unknown'}"
    )
    for each in decision.overridden:
        lost = "" if each.lost_entries is None else f"{each.lost_entries:,} entries that "
        yield from _said("loses", f"{each.name}: {lost}it hasn't read, because {each.reason.value}")


def _lag_text(lag: Lag) -> str:
    state = "holds data back" if lag.is_counted else "never published" if not lag.has_published else "doesn't count"
    behind = f"{lag.unread_entries or 0:,} entries, {size_text(lag.unread_bytes or 0)} behind"
    where = behind if lag.unread_entries or lag.unread_bytes else "at the tail"
    return f"{lag.name}: {where}; {'' if lag.is_active else 'silent, '}{state}"


def cut_words(cut: StreamCut) -> str:
    """Format ``7:12``, or for a topic ``7:12 in partition 0, 9:0 in partition 1``."""
    if len(cut.offsets) == 1 and cut.segments[0].number == 0:
        return str(cut.offsets[cut.segments[0]])
    parts = [f"{cut.offsets[each]} in partition {each.number}" for each in cut.segments[:_PARTITIONS_SHOWN]]
    rest = len(cut.offsets) - len(parts)
    return ", ".join(parts) + (f" and {rest} more" if rest > 0 else "") or "the beginning"


def boundary_words(decision: Decision) -> str:
    """Which cut the new head is, and how old what lies before it; empty: no recorded cut and no end of a segment."""
    for each in decision.candidates:
        if each.role is Role.CHOSEN and each.is_boundary:
            age = "" if each.time_ms is None else f", all before it is {span_text(decision.at_ms - each.time_ms)} old"
            return f"a segment's end{age}"
        if each.role is Role.CHOSEN and each.time_ms is not None:
            return f"a cut recorded {span_text(decision.at_ms - each.time_ms)} ago"
    return ""


def outcome_facts(outcome: CycleOutcome, *, done: bool) -> dict[str, object]:
    """JSON form: the decision, and with ``done`` the truncations."""
    decision = outcome.decision
    found: dict[str, object] = {
        "stream": outcome.stream,
        "policy": policy_text(outcome.policy),
        "begin": outcome.begin.as_json(),
        "tail": outcome.tail.as_json(),
        "recorded_cuts": len(outcome.records),
        "boundary": (None if decision is None or decision.cut is None else boundary_words(decision)) or None,
        "unread_entries": outcome.unread_entries,
        "unread_bytes": outcome.unread_bytes,
        "rule": None if decision is None else decision.rule.value,
        "why": outcome.why,
        "published_ahead": [
            {"stream": each.stream, "first": str(each.first), "last": str(each.last), "publish_time_ms": each.time_ms}
            for each in outcome.ahead
        ],
        "broker": [] if decision is None or decision.broker is None else list(decision.broker.words),
        "new_head": None if decision is None or decision.cut is None else cut_words(decision.cut),
        "entries": 0 if decision is None else decision.removed_entries or 0,
        "bytes": 0 if decision is None else decision.removed_bytes or 0,
        "overridden": [] if decision is None else [each.name for each in decision.overridden],
        "decision": None if decision is None else decision.as_json(),
    }
    return found | ({"truncated": sorted(outcome.truncations)} if done else {})


# --- the plot -------------------------------------------------------------------------------------------------------


def picture(outcome: CycleOutcome) -> Iterator[str]:
    """Plot by bytes, from start position to tail: cuts, candidates, readers, deleted (``#``) and kept (``=``) data."""
    scale = _Scale(outcome)
    first, last = cut_words(outcome.begin), cut_words(outcome.tail)
    yield " " * _LEFT + first + " " * max(WIDTH - _LEFT - len(first) - len(last), 1) + last
    yield _row("stream", scale.bar(outcome.decision))
    marked = {scale.column(record.cut) for record in outcome.records}
    marks = ("|" if column in marked else " " for column in range(scale.width))
    yield _row("recorded", "".join(marks) if marked else "none")
    yield from (_pointer(scale, *each) for each in _candidates(outcome))
    yield from (_pointer(scale, lag.name, lag.cut, "" if lag.is_counted else "(doesn't count)") for lag in outcome.lags)


def _candidates(outcome: CycleOutcome) -> Iterator[tuple[str, StreamCut, str]]:
    if (decision := outcome.decision) is None:
        return
    yield from (
        (_ROLES[each.role], each.cut, _kept(decision, each)) for each in decision.candidates if each.role in _ROLES
    )
    if decision.bound is not None:
        yield "bound", decision.bound, "read by all that count"
    if decision.cut is not None:
        yield "new head", decision.cut, ""


def _kept(decision: Decision, candidate: Candidate) -> str:
    if decision.limits is not None and decision.limits.unit is Unit.TIME and candidate.time_ms is not None:
        return f"{span_text(decision.at_ms - candidate.time_ms)} old"
    return "" if candidate.keeps_bytes is None else f"keeps {size_text(candidate.keeps_bytes)}"


def _row(name: str, content: str) -> str:
    shown = name if len(name) < _LEFT else f"{name[: _LEFT - 2]}…"
    return f"{shown:<{_LEFT}}{content}".rstrip()


def _pointer(scale: _Scale, name: str, cut: StreamCut, note: str) -> str:
    column = scale.column(cut)
    # Put the note where it fits: after the mark, or before it.
    if column + 2 + len(note) <= scale.width:
        return _row(name, " " * column + "^" + (f" {note}" if note else ""))
    return _row(name, f"{note} ".rjust(column) + "^" if note else " " * column + "^")


class _Scale:
    def __init__(self, outcome: CycleOutcome) -> None:
        self.width = WIDTH - _LEFT
        self._sizes = outcome.sizes
        self._start = outcome.sizes.get(outcome.begin, 0)
        self._span = max(outcome.sizes.get(outcome.tail, 0) - self._start, 1)

    def column(self, cut: StreamCut) -> int:
        part = (self._sizes.get(cut, self._start) - self._start) / self._span
        return min(max(int(part * (self.width - 1) + 0.5), 0), self.width - 1)

    def bar(self, decision: Decision | None) -> str:
        goes = 0 if decision is None or decision.cut is None else max(self.column(decision.cut), 1)
        return "#" * goes + "=" * (self.width - goes)
