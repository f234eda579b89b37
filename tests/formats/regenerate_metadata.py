"""Generates formats/metadata/*_pb2.py from the .proto files beside them. Run by hand after a change of those.

The generated check of the exact protobuf release is taken out: the code works with every release from 6.30 on, and
``tests/formats/metadata/test_messages.py`` proves that it says what the .proto files say. So are an unused symbol
database, and offsets that only copying a descriptor in protobuf without C code uses.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "formats" / "metadata"
NAMES = ("pulsar_ledger", "bookkeeper_ledger", "pulsar_message", "pulsar_protocol")


def regenerate() -> None:
    for name in NAMES:
        arguments = [f"-I{ROOT}", f"--python_out={ROOT}", f"formats/metadata/{name}.proto"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True)
        path = FOLDER / f"{name}_pb2.py"
        text = path.read_text()
        text = re.sub(r"^from google\.protobuf import runtime_version.*\n", "", text, flags=re.M)
        text = re.sub(r"^_runtime_version\.ValidateProtobufRuntimeVersion\([^)]*\)\n", "", text, flags=re.M)
        text = re.sub(r"^# (Protobuf Python Version|-\*-|@@protoc_insertion_point).*\n", "", text, flags=re.M)
        text = re.sub(r"^from google\.protobuf import symbol_database.*\n|^_sym_db = .*\n+", "", text, flags=re.M)
        text = re.sub(r"^from google\.protobuf import descriptor as.*\n", "", text, flags=re.M)
        text = re.sub(r"^if not _descriptor\._USE_C_DESCRIPTORS:\n(  .*\n)+", "", text, flags=re.M)
        path.write_text("# mypy: ignore-errors\n" + text)


if __name__ == "__main__":
    regenerate()
