"""Explanation of a retention cycle: its text, and a picture that fits a terminal."""

from __future__ import annotations

from formats.entries import Position
from offloader.retention.explain import WIDTH, explain, outcome_facts
from offloader.times import time_text
from tests.retention.retained_streams import ENTRIES, STREAM, Bench
from tests.support.streams import batch_of


def test_explain_shows_cut_rule_and_losing_subscribers() -> None:
    bench = Bench(
        policy="consumption",
        min_size="10KiB",
        max_size="40KiB",
        subscriber_timeout="600m",
    )
    bench.grow()
    for name in ("billing", "search", "never"):
        bench.subscribe(name)
    bench.publish("billing", Position(1, ENTRIES))
    bench.grow_and_run(3)
    bench.grow(ledgers=3)
    bench.publish("search", Position(7, 0))
    lines = list(explain(bench.cycle().plan("public/default/persistent/orders")))
    assert lines == EXPECTED.strip("\n").splitlines()
    assert max(map(len, lines)) <= WIDTH


EXPECTED = """
stream   public/default/persistent/orders
policy   by consumption: keeps at least 10 KiB, unread data up to 40 KiB; a
         subscriber silent for 10 h doesn't hold data back

                2:0                                                        7:10
stream          #####################==========================================
recorded                  |          |         |                              |
min                                                    keeps 10 KiB ^
max                                  ^ keeps 40 KiB
bound           ^ read by all that count
new head                             ^
billing         ^
never           ^ (doesn't count)
search                                                              ^

reader   billing: 60 entries, 60 KiB behind; holds data back
reader   never: 60 entries, 60 KiB behind; never published
reader   search: 10 entries, 10 KiB behind; holds data back

bound    the active subscribers' cuts
rule     unread data is above max: the excess is deleted
boundary a cut recorded 4 min ago
result   entries before 4:0 would be deleted: 20 entries, 20 KiB
loses    billing: 20 entries that it hasn't read, because max doesn't leave
         room for it
loses    never: 20 entries that it hasn't read, because it never published, so
         it holds nothing back
"""


def test_explain_reports_missing_policy_and_subscribers() -> None:
    bench = Bench()
    bench.grow()
    lines = list(explain(bench.run()))
    assert lines[1] == "policy   no policy: no automatic deletion"
    assert lines[-1] == "no subscribers"
    assert not [line for line in lines if line.startswith(("rule", "result"))]


def test_reason_without_a_decision_is_the_missing_policy_or_entry() -> None:
    bench = Bench()
    bench.grow(ledgers=0)
    assert bench.run().why == "the stream has no entry"
    bench.grow()
    assert bench.run().why == "no policy: no automatic deletion"


def test_entries_published_in_the_future_are_named() -> None:
    bench = Bench(keep=3600)
    bench.grow(ledgers=0)
    now_ms, writer = bench.clock.now_ms(), bench.writers[STREAM]
    old_ms, ahead_ms = now_ms - 10**8, now_ms + 30 * 86_400_000
    for number, time_ms in ((2, old_ms), (3, ahead_ms), (4, old_ms), (5, ahead_ms + 1)):
        writer.add([batch_of(number, 0, ENTRIES, times=time_ms)], closes=[number])
    assert not bench.cycle().plan(STREAM).why.count("future"), "up to there entries go"
    bench.run()
    plan = bench.cycle().plan(STREAM)
    assert plan.why == (
        "no deletable part of the stream exceeds the limits; 3:0 to 3:9 have a publish time in the future, "
        f"{time_text(ahead_ms)}"
    )
    said = " ".join(" ".join(explain(plan)).split())
    assert f"future entries in 3:0 to 3:9 have a publish time in the future, {time_text(ahead_ms)}." in said
    assert outcome_facts(plan, done=False)["published_ahead"] == [
        {"stream": STREAM, "first": "3:0", "last": "3:9", "publish_time_ms": ahead_ms}
    ]


def test_subscriber_that_holds_everything_back_is_named() -> None:
    bench = Bench(policy="consumption")
    bench.grow(ledgers=2)
    for name, position in (("billing", Position(1, 0)), ("search", Position(2, 0))):
        bench.subscribe(name)
        bench.publish(name, position)
    assert bench.cycle().plan(STREAM).why == (
        "entries that all subscribers have read are deleted; the head is already there, and billing holds back the rest"
    )
