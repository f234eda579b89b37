"""A lease that has ended stays away, whatever its holder's threads still do."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

from offloader.manifest.protection import HeldLease, leases_of, take_lease
from offloader.runtime.clock import SystemClock
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import StoreWrapper
from offloader.testing.manual_clock import ManualClock
from tests.support.waiting import PATIENCE_S

_names = count()


class Waiting(StoreWrapper):
    """A store whose writes wait from the second on, until ``go``."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(f"lease-{next(_names)}", "", SystemClock()))
        self.writes, self.under_way, self.go = 0, threading.Event(), threading.Event()

    def around(self, request: Any, call: Any) -> Any:
        if request.verb == "put":
            self.writes += 1
            if self.writes > 1:
                self.under_way.set()
                assert self.go.wait(PATIENCE_S)
        return call()


def held() -> tuple[Waiting, ManualClock, HeldLease]:
    store, clock = Waiting(), ManualClock()
    return store, clock, take_lease(store, "shop/orders", 60, clock=clock)


def test_lease_that_ends_while_it_is_renewed_is_gone() -> None:
    store, clock, lease = held()
    clock.advance(30)
    threads = [threading.Thread(target=lease.renew_if_due), threading.Thread(target=lease.end)]
    threads[0].start()
    assert store.under_way.wait(PATIENCE_S)
    threads[1].start()
    store.go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not leases_of(store, "shop/orders")


def test_lease_that_has_ended_is_not_renewed() -> None:
    store, clock, lease = held()
    lease.end()
    clock.advance(30)
    lease.renew_if_due()
    assert store.writes == 1
    assert not leases_of(store, "shop/orders")
