"""Process tuning, seen in processes that apply it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import ctypes
from offloader.runtime.system import keep_heap_small
class Heap(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
library = ctypes.CDLL(None)
told = keep_heap_small()
if not hasattr(library, "mallinfo2"):  # another C library, or an older one
    raise SystemExit(print(told))
library.mallinfo2.restype = Heap
# What is freed is what the library learns from: after this, blocks of up to 16 MiB come from its heaps by default.
del (large := [bytes(16 << 20)])[:]
before = library.mallinfo2().hblks
kept = [bytes(1 << 20) for _ in range(32)]
print(told, library.mallinfo2().hblks - before)
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({}, ["True", "32"], id="ours"),
        pytest.param({"MALLOC_ARENA_MAX": "1"}, ["False", "0"], id="the environment's"),
        pytest.param(
            {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}, ["False", "0"], id="the environment's, newer name"
        ),
    ],
)
def test_large_blocks_are_allocated_by_mmap_unless_the_environment_overrides_it(
    given: dict[str, str], said: list[str]
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))} | given
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = done.stdout.split()
    if hasattr(ctypes.CDLL(None), "mallinfo2"):
        assert found == said
    else:
        assert len(found) == 1, "nobody here can tell where blocks come from"


def test_serving_process_uses_the_system_allocator_and_other_commands_arrows() -> None:
    program = """
import sys
from offloader.cli.main import main
assert "pyarrow" not in sys.modules
main([sys.argv[1], "--help"])
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "ARROW_"))}
    kept = {"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}
    seen = [
        subprocess.run(
            [sys.executable, "-c", program, verb], capture_output=True, text=True, env=env | more, check=False
        ).stdout.splitlines()[-1]
        for verb, more in (("serve", {}), ("ls", {}), ("serve", kept))
    ]
    ours = "system" if hasattr(ctypes.CDLL(None), "mallopt") else seen[1]
    assert seen == [ours, seen[1], "mimalloc"]
