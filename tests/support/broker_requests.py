"""A broker's requests to a process, as its plugin makes them; ``ask`` is urllib."""

from __future__ import annotations

from typing import Any

from tests.support.broker_frames import Got, frames_of, through_plan
from tests.support.http_process import Answer, ask, quoted

__all__ = ["STREAM", "Broker"]

STREAM = "public/default/persistent/orders"


class Broker:
    """A broker's requests to one process about one stream."""

    def __init__(self, url: str, stream: str = STREAM, *, token: str = "", **headers: str) -> None:
        self._base, self._headers, self._token = f"{url}/v1/streams/{quoted(stream)}/ledgers", headers, token

    def plan(self, ledger_id: int, query: str = "") -> Answer:
        return ask(f"{self._base}/{ledger_id}{query}", headers=self._headers, token=self._token)

    def entries(self, ledger_id: int, first: int, last: int, query: str = "") -> Answer:
        return ask(
            f"{self._base}/{ledger_id}/entries?from={first}&to={last}{query}", headers=self._headers, token=self._token
        )

    def whole(self, ledger_id: int, **how: Any) -> list[tuple[int, bytes]]:
        answer = self.plan(ledger_id)
        assert answer.status == 200, answer.body
        found = through_plan(answer.json(), lambda first, last: self.entries(ledger_id, first, last), **how)
        return list(found)

    def offload(self, ledger_id: int, **asked: Any) -> Answer:
        body = {"uuid": "", "created_ms": None, "wait_seconds": 0, **asked}
        url = f"{self._base}/{ledger_id}/offload"
        return ask(url, method="POST", body=body, headers=self._headers, token=self._token)

    def fill(self, ledger_id: int, first: int, last: int, entries: Got | bytes) -> Answer:
        body = entries if isinstance(entries, bytes) else frames_of(entries)
        url = f"{self._base}/{ledger_id}/missing?first={first}&last={last}"
        headers = {**self._headers, "Content-Type": "application/octet-stream"}
        return ask(url, method="PUT", body=body, headers=headers, token=self._token)

    def delete(self, ledger_id: int, query: str = "") -> Answer:
        return ask(f"{self._base}/{ledger_id}{query}", method="DELETE", headers=self._headers, token=self._token)
