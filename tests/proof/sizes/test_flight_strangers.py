"""Memory of a process that refuses unauthenticated Arrow Flight calls."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.flight as fl
import pytest

from tests.support.flight_door import APPEND_SCHEMA
from tests.support.serving_processes import Serving

pytestmark = pytest.mark.process

#: Taken in, a message costs the process several times its size.
MESSAGE_BYTES = 64 << 20


def peak_bytes(process_id: int) -> int:
    """The most memory it ever had, as the system knows it."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{process_id}/status").read_text(encoding="ascii"), re.M)
    assert found is not None
    return int(found[1]) << 10


def test_unauthenticated_calls_are_refused_before_a_message_is_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-that-reads")
    config = tmp_path / "offloader.toml"
    config.write_text(f"""
        [serve]
        store = "file://{tmp_path}/store"
        maintenance = false
        [flight]
        listen = "127.0.0.1:0"
        [access]
        read_tokens = ["file:{tmp_path}/token"]
        """)
    descriptor = fl.FlightDescriptor.for_command(bytes(MESSAGE_BYTES))
    with Serving(config) as serving, fl.connect(f"grpc://{serving.logged('flight_listens')['address']}") as client:
        before = peak_bytes(serving.process.pid)
        for token, refusal in (
            (b"", fl.FlightUnauthenticatedError),
            (b"Bearer a-token-of-nobody", fl.FlightUnauthenticatedError),
            (b"Bearer a-token-that-reads", fl.FlightUnauthorizedError),
        ):
            options = fl.FlightCallOptions(headers=[(b"authorization", token)] if token else [])
            with pytest.raises(refusal):
                client.do_put(descriptor, APPEND_SCHEMA, options)[0].close()
        assert peak_bytes(serving.process.pid) - before < MESSAGE_BYTES // 2
