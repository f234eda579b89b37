"""Sealed documents: what is too short to hold a checksum."""

from __future__ import annotations

import pytest

from formats.checked_json import opened, sealed
from formats.errors import FormatError, TruncatedError

BODY = {"format": 1, "a": "b"}


def test_sealed_document_is_opened() -> None:
    assert opened(sealed(BODY), 1) == {"a": "b"}


@pytest.mark.parametrize("length", range(len(sealed({"format": 1}))))
def test_beginning_of_a_document_is_refused(length: int) -> None:
    with pytest.raises(FormatError):
        opened(sealed({"format": 1})[:length], 1)


def test_checksum_without_a_document_is_too_short() -> None:
    suffix = sealed(BODY)[-len(',"crc32c":"00000000"}') :]
    with pytest.raises(TruncatedError, match="too short"):
        opened(suffix, 1)
