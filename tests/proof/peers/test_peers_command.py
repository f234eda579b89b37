"""The comparison with peers: the command measures and reports, the server counts, requests cost what S3 charges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.bench_peers import main
from benchmarks.peers.bill import Bill
from benchmarks.peers.kinds import KINDS
from benchmarks.peers.report import COLUMNS, rendered, value_of, with_figures
from tests.test_architecture import ROOT

WITHOUT_JAVA = ["ours", "boto3", "s3transfer", "obstore"]


@pytest.mark.process
def test_the_command_measures_and_reports_each_peer_that_needs_no_java(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, report, readme = (tmp_path / name for name in ("results.json", "benchmarks.md", "README.md"))
    before = (ROOT / "README.md").read_text(encoding="utf-8")
    readme.write_text(before, encoding="utf-8")
    sizes = ["--mib", "4", "--warm-mib", "2", "--rounds", "1", "--singles", "2", "--delay-ms", "0"]
    files = ["--results", str(results), "--report", str(report), "--readme", str(readme)]
    assert main([*sizes, *files, "--part", "rates", "--only", *WITHOUT_JAVA]) == 0

    document = json.loads(results.read_text(encoding="utf-8"))
    for name in WITHOUT_JAVA:
        for column in COLUMNS:
            if column.key in ("readable", *KINDS[name].lacks):
                continue
            for path in column.figures:
                value = value_of(document, name, "0", path)
                assert value is not None, (name, path)
                assert value > 0 or path[1:] in (("gets_per_gib",), ("memory_mib",), ("cpu_s_per_gb",)), (name, path)
    # The server counted: an upload in one part, and its beginning and end; one GET.
    assert document["cells"]["boto3"]["0"]["offload"]["requests"] == {
        "CompleteMultipartUpload": 1,
        "NewMultipartUpload": 1,
        "PutObjectPart": 1,
    }
    assert document["cells"]["boto3"]["0"]["read"]["requests"] == {"GetObject": 1}
    assert document["cells"]["boto3"]["0"]["stored_per_byte"] == 1.0
    assert report.read_text(encoding="utf-8") == rendered(document)
    assert readme.read_text(encoding="utf-8") == with_figures(before, document) != before
    assert (ROOT / "README.md").read_text(encoding="utf-8") == before
    assert (tmp_path / "benchmarks.png").read_bytes().startswith(b"\x89PNG")

    # Other sizes are no part of the same table.
    with pytest.raises(SystemExit):
        main(["--mib", "8", *files])
    assert "other sizes" in capsys.readouterr().err
    assert json.loads(results.read_text(encoding="utf-8")) == document


@pytest.mark.parametrize(
    ("requests", "puts", "gets"),
    [
        ({"PutObject": 1, "PutObjectPart": 2, "NewMultipartUpload": 1, "CompleteMultipartUpload": 1}, 5, 0),
        ({"ListObjectsV2": 3, "ListMultipartUploads": 1, "CopyObject": 1}, 5, 0),
        ({"GetObject": 3, "HeadObject": 2, "GetBucketLocation": 1}, 0, 6),
        ({"DeleteMultipleObjects": 3, "DeleteObject": 2, "AbortMultipartUpload": 1}, 0, 0),
    ],
)
def test_requests_cost_what_s3_takes_for_their_class(requests: dict[str, int], puts: int, gets: int) -> None:
    bill = Bill(requests)
    assert (bill.puts, bill.gets) == (puts, gets)
    assert bill.usd == pytest.approx(puts * 5e-6 + gets * 4e-7)
