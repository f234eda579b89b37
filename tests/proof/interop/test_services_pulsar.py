"""The broker service in the foreground."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.java

ROOT = Path(__file__).parents[3]


def test_broker_service_prints_its_addresses_and_ends_with_the_terminal() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "services.servers", "run", "pulsar"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(5)]
    assert {line.partition("=")[0] for line in lines[:4]} == {
        f"export AWS_{name}" for name in ("ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION")
    }
    found = re.fullmatch(r"# broker (pulsar://\S+), admin (http://\S+), offloads to s3://pulsar\n", lines[4])
    assert found is not None
    url = f"{found[2]}/admin/v2/namespaces/public"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        assert json.load(answer) == ["public/default"]
    process.terminate()
    assert process.communicate(timeout=120)[0] == ""
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=PATIENCE_S)
