"""The elements of one JSON array in a file, one after the other, without the whole file in memory."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

_PIECE_CHARS = 64 * 1024
_BLANKS = " \t\r\n"


class JsonArray:
    """Iterates over (value, its text) of each element. Use it once.

    Args:
        file: UTF-8, at its beginning.
        decoder: of an element.
        chars_max: of one element; bounds the memory.

    Attributes:
        number: of the current element, from 1.

    Raises:
        ValueError: (while iterating) it isn't one JSON array; the message fits after the element's number.
    """

    def __init__(self, file: BinaryIO, decoder: json.JSONDecoder, chars_max: int) -> None:
        self._reader, self._decoder, self._chars_max = codecs.getreader("utf-8-sig")(file), decoder, chars_max
        self._text, self._at, self.number = "", 0, 0

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        if self._next_sign() != "[":
            raise ValueError("not a JSON array")
        self._at += 1
        sign = self._next_sign()
        while sign != "]":
            self.number += 1
            yield self._element()
            sign = self._next_sign()
            if sign not in (",", "]"):
                found = f"{sign!a} follows it" if sign else "the file ends after it"
                raise ValueError(f"not a JSON array: {found}, instead of a comma or ]")
            if sign == ",":
                self._at += 1
        self._at += 1
        if self._next_sign():
            raise ValueError("there is more after the end of the array")

    def _element(self) -> tuple[Any, str]:
        self._next_sign()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._read_on():  # perhaps it is only cut off
                    continue
                raise ValueError(f"not JSON: {error.msg}") from error
            except RecursionError as error:
                raise ValueError(f"not JSON: {error}") from error
            if end == len(self._text) and self._read_on():
                continue  # a number may go on
            source, self._at = self._text[self._at : end], end
            return value, source

    def _next_sign(self) -> str:
        """The sign at the next place that isn't blank; empty at the file's end."""
        while True:
            while self._text[self._at : self._at + 1] in _BLANKS and self._at < len(self._text):
                self._at += 1
            if self._at < len(self._text) or not self._read_on():
                return self._text[self._at : self._at + 1]

    def _read_on(self) -> bool:
        """Drops what is done, and reads about as much as is left; whether there was more."""
        left = self._text[self._at :]
        if len(left) > self._chars_max:
            raise ValueError(f"longer than {self._chars_max} characters")
        try:
            piece = self._reader.read(max(_PIECE_CHARS, len(left)))
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 ({error.reason})") from error
        self._text, self._at = left + piece, 0
        return bool(piece)
