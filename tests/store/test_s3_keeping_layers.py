"""Storage class and key of new objects for a stream, a namespace or a topic."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from offloader.errors import InvalidCallError
from offloader.managed_ledger import open_managed_ledger
from offloader.read.partitions import open_reader
from offloader.settings import StoreSettings
from offloader.settings.layered import SettingsFile, parse_settings
from offloader.store.open import open_store
from offloader.store.s3 import CLASS_BYTES_MIN
from tests.support.fake_s3 import FakeS3

ORDERS = "public/default/persistent/orders"
KEY = "x-amz-server-side-encryption-aws-kms-key-id"
CLASS = "x-amz-storage-class"
FILE = f"""
[store]
encryption = "aws:kms"
kms_key = "of-all"
retries_max = 0
[namespaces."public/default".store]
storage_class = "STANDARD_IA"
[topics."{ORDERS}".store]
kms_key = "of-orders"
[namespaces."secret/ns".store]
kms_key = "of-ns"
"""


def read(text: str = FILE) -> SettingsFile:
    return parse_settings(text, "offloader.toml")


@pytest.mark.slow
@pytest.mark.parametrize("passed", [lambda each: each, lambda each: pickle.loads(pickle.dumps(each))])
def test_new_objects_get_the_key_and_class_of_their_stream(passed: Callable[[StoreSettings], StoreSettings]) -> None:
    """Also where the settings went to another process, as to an executor of Spark."""
    expected = {
        f"{ORDERS}/data": ("of-orders", "STANDARD_IA"),
        f"{ORDERS}/manifest/record": ("of-orders", "STANDARD_IA"),
        f"{ORDERS}-partition-3/data": ("of-orders", "STANDARD_IA"),
        "public/default/persistent/others/data": ("of-all", "STANDARD_IA"),
        "secret/ns/persistent/t/data": ("of-ns", None),
        "a/b/persistent/t/data": ("of-all", None),
        "_groups/document": ("of-all", None),
    }
    with FakeS3() as server:
        store = server.open(settings=passed(read().settings_of("").store))
        for key in expected:
            store.put(key, bytes(CLASS_BYTES_MIN))
            upload = store.begin_upload(key)
            store.abort_upload(key, upload)
        for method in ("PUT", "POST"):
            sent = {each.key.removeprefix("root/"): each.headers for each in server.asked(method)}
            assert {key: (found.get(KEY), found.get(CLASS)) for key, found in sent.items()} == expected


def test_settings_of_every_stream_describe_the_same_store() -> None:
    """A process opens one, and a stream's settings are compared with those that it was opened with."""
    file = read()
    store = file.settings_of("").store
    assert file.settings_of(ORDERS).store == store
    assert store.kms_key == "of-all"
    assert store.of_stream(ORDERS).kms_key == "of-orders"
    assert store.of_stream("a/b/persistent/t") == StoreSettings(encryption="aws:kms", kms_key="of-all", retries_max=0)
    explained = file.values_of(ORDERS)["store.kms_key"]
    assert (explained.value, explained.source) == ("of-orders", f"offloader.toml [topic {ORDERS}]")


@pytest.mark.parametrize("name", ["encryption", "checksum", "single_writer"])
def test_other_settings_of_the_store_stay_those_of_the_process(name: str) -> None:
    value = {"encryption": '"AES256"', "checksum": '"md5"', "single_writer": "true"}[name]
    with pytest.raises(InvalidCallError, match=rf"store\.{name}: applies to the whole process"):
        read(f'[topics."{ORDERS}".store]\n{name} = {value}\n')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'[topics."{ORDERS}".store]\nkms_key = "k"\n', "store.encryption isn't aws:kms"),
        (f'[topics."{ORDERS}".store]\nstorage_class = "GLACIER"\n', "can't be read until they are restored"),
    ],
)
def test_invalid_value_of_a_layer_is_refused_when_opening(text: str, said: str) -> None:
    with pytest.raises(InvalidCallError, match=said):
        open_store("s3://bucket/root", settings=read(text).settings_of("").store)


def test_store_without_keys_refuses_those_of_a_layer() -> None:
    settings = read(f'[topics."{ORDERS}".store]\nkms_key = "k"\n').settings_of("").store
    with pytest.raises(InvalidCallError, match=r"store\.kms_key is supported for s3://, gs:// and az:// only"):
        open_store("memory://no-keys", settings=settings)
    open_store("memory://no-keys", settings=settings.for_reading()).close()


@pytest.mark.slow
def test_stream_is_offloaded_with_its_own_key(tmp_path: Path) -> None:
    file = tmp_path / "offloader.toml"
    file.write_text(FILE + '[offload]\nmethod = "streaming"\n')
    with FakeS3() as server:
        store = server.open(settings=read().settings_of("").store)
        with open_managed_ledger(
            ORDERS, ledgers=f"sqlite:///{tmp_path}/ledgers.db", store=store, settings=file
        ) as topic:
            topic.append(b"bytes")
            topic.offload()
        kept = {key: each.headers[KEY] for key, each in server.objects.items()}
        assert {each for key, each in kept.items() if key.startswith(f"root/{ORDERS}/")} == {"of-orders"}
        with open_reader(store, ORDERS) as reader:
            assert reader.count() == 1
