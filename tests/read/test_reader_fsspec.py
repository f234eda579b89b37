"""A stream that was written through a store's own driver is read through fsspec, without a setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.errors import InvalidCallError
from offloader.read.partitions import open_reader
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.support.server_fixtures import S3Place
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"


def written(store: ObjectStore) -> StreamWriter:
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(1, 0, 10)], closes=[1])
    writer.add([batch_of(2, 0, 20)])
    return writer


def require_read(writer: StreamWriter, store: ObjectStore) -> None:
    with open_reader(store, STREAM) as reader:
        assert [entry for batch in reader.scan() for entry in batch.entries()] == writer.entries


def require_read_by_commands(capsys: pytest.CaptureFixture[str], *options: str) -> None:
    capsys.readouterr()
    assert main(["read", STREAM, "--count", *options]) == 0
    assert capsys.readouterr().out == "30\n"
    for verb in (["verify", "--deep"], ["ls"], ["status"]):
        assert main([*verb, STREAM, *options]) == 0
        assert STREAM in capsys.readouterr().out or verb == ["ls"]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["fsspec+file", "fsspec+local"])
def test_directory_is_read_through_fsspec(scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = written(open_store(f"file://{tmp_path}/store"))
    for url in (f"{scheme}://{tmp_path}/store", f"{scheme}://{tmp_path}/store/"):
        require_read(writer, open_store(url))
        require_read_by_commands(capsys, "--store", url)


def test_copy_in_another_directory_is_another_place(tmp_path: Path) -> None:
    written(open_store(f"file://{tmp_path}/store"))
    (tmp_path / "store").rename(tmp_path / "copy")
    elsewhere = pytest.raises(InvalidCallError, match=r"was written to .*/store, .* is .*/copy, ")
    with open_reader(open_store(f"fsspec+file://{tmp_path}/copy"), STREAM) as reader, elsewhere:
        list(reader.scan())


@pytest.mark.slow
@pytest.mark.process
def test_bucket_is_read_through_s3fs(
    s3_place: S3Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = written(s3_place.open())
    options = {name: value for name, value in s3_place.options.items() if name != "region"}
    for given in (options, {**options, "endpoint_url": f"{options['endpoint_url']}/"}):
        require_read(writer, open_store(f"fsspec+{s3_place.url}", **given))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_key"])
    url = f"fsspec+{s3_place.url}"
    require_read_by_commands(capsys, "--store", url, "--endpoint-url", options["endpoint_url"])
    # As boto3 and s3fs take it.
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", options["endpoint_url"])
    require_read(writer, open_store(url))


@pytest.mark.parametrize(
    ("url", "options", "driver", "bucket", "endpoint"),
    [
        ("fsspec+s3://cold/root", {}, "aws-s3", "cold", ""),
        ("fsspec+s3://cold", {"endpoint_url": "https://s3.eu-central-1.amazonaws.com"}, "aws-s3", "cold", ""),
        ("fsspec+s3a://cold/a/b", {"endpoint_url": "http://minio:9000"}, "aws-s3", "cold", "http://minio:9000"),
        ("fsspec+memory://cold/root", {}, "memory", "/cold/root" + "/", ""),
    ],
)
def test_place_is_named_as_the_stores_own_driver_names_it(
    url: str,
    options: dict[str, str],
    driver: str,
    bucket: str,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    found = open_store(url, **options).driver_metadata  # type: ignore[arg-type]
    assert (found["managedLedgerOffloadDriver"], found["bucket"], found["serviceEndpoint"]) == (
        *(driver, bucket, endpoint),
    )
