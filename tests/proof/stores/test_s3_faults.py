"""The S3 store over failing servers, on real sockets below the SDK."""

from __future__ import annotations

import pytest

from offloader.errors import (
    OutcomeUnknownError,
    StoreUnavailableError,
)
from offloader.settings import Duration, StoreSettings
from tests.store.test_s3_faults import CALLS, READS, opened
from tests.support.misbehaving_servers import silent_server

#: For servers that never answer.
HASTY = StoreSettings(connect_timeout=Duration(0.5), read_timeout=Duration(0.5), retries_max=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_server_that_never_answers_runs_into_the_deadline(name: str) -> None:
    """A read changed nothing; a write that was sent may have happened."""
    with silent_server() as url:
        store = opened(url, HASTY)
        with pytest.raises(StoreUnavailableError if name in READS else OutcomeUnknownError):
            CALLS[name](store)
        store.close()
