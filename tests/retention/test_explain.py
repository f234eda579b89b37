"""Explanation of a retention cycle: its text, and a picture that fits a terminal."""

from __future__ import annotations

from formats.entries import Position
from offloader.retention.explain import WIDTH, explain
from tests.retention.retained_streams import Bench, mb


def test_explain_shows_cut_rule_and_losing_subscribers() -> None:
    bench = Bench(policy="consumption", min_mbytes=mb(10), max_mbytes=mb(40), subscriber_timeout_minutes=600)
    bench.grow()
    for name in ("billing", "search", "never"):
        bench.subscribe(name)
    bench.publish("billing", Position(1, 5))
    bench.grow_and_run(3)
    bench.grow(ledgers=3)
    bench.publish("search", Position(7, 0))
    lines = list(explain(bench.cycle().plan("public/default/persistent/orders")))
    assert lines == EXPECTED.strip("\n").splitlines()
    assert max(map(len, lines)) <= WIDTH


EXPECTED = """
stream   public/default/persistent/orders
policy   by consumption: keeps at least 10 KiB, unread data up to 40 KiB; who
         is silent for 10 h holds nothing back

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
rule     unread data is above max: what no longer fits goes
boundary a cut recorded 4 min ago
result   what lies before 4:0 would go: 20 entries, 20 KiB
loses    billing: 20 entries that it hasn't read, because max doesn't leave
         room for it
loses    never: 20 entries that it hasn't read, because it never published, so
         it holds nothing back
"""


def test_explain_reports_missing_policy_and_subscribers() -> None:
    bench = Bench()
    bench.grow()
    lines = list(explain(bench.run()))
    assert lines[1] == "policy   no policy: nothing goes by itself"
    assert lines[-1] == "nobody subscribes"
    assert not [line for line in lines if line.startswith(("rule", "result"))]
