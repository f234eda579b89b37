"""``python -m tests.contracts``: writes the snapshots of all contracts anew."""

from __future__ import annotations

from tests.contracts.contracts import rewrite

if __name__ == "__main__":
    print(f"written: {', '.join(rewrite()) or 'nothing, all are current'}")
