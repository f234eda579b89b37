"""Where tokens are and how they are read: files of one token a line, environment variables.

Owns what a token may look like. Must never show one, nor keep one: what is handed out are digests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from offloader.errors import AccessDenied, InvalidCall

__all__ = ["TOKEN_BYTES_MAX", "digest_of", "is_token", "token_digests"]

#: Bytes of one token: shorter ones can be guessed, longer ones don't fit into a header.
TOKEN_BYTES_MIN = 16
TOKEN_BYTES_MAX = 4096
#: Larger files hold something else.
TOKEN_FILE_BYTES_MAX = 256 * 1024

#: RFC 6750, b64token: what can stand in a header.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def is_token(text: str) -> bool:
    """Whether it could be one: tokens that are known are longer than those that are looked up."""
    return 0 < len(text) <= TOKEN_BYTES_MAX and _TOKEN.fullmatch(text) is not None


def digest_of(token: str) -> bytes:
    """What is kept of a token, and compared."""
    return hashlib.sha256(token.encode()).digest()


def token_digests(source: str, environ: Mapping[str, str]) -> Sequence[bytes]:
    """Digests of the tokens of one source, ``file:PATH`` or ``env:NAME``.

    Raises:
        InvalidCall: a source of another kind, nothing in it, or what is no token; which is never in the message.
        AccessDenied: a file that can't be read.
    """
    kind, _, place = source.partition(":")
    if kind == "env" and _VARIABLE.fullmatch(place):
        text = environ.get(place, "")
    elif kind == "file" and place:
        text = _file_text(Path(place))
    else:
        # What stands there may be a token that somebody put there: it isn't repeated.
        raise InvalidCall("a token's source is neither file:PATH nor env:NAME")
    lines = [line.strip() for line in text.splitlines()]
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise InvalidCall(f"{source} holds no token")
    for number, token in enumerate(tokens, 1):
        which = f"token {number} of {source}" if len(tokens) > 1 else f"the token of {source}"
        if not TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX:
            raise InvalidCall(f"{which} is shorter than {TOKEN_BYTES_MIN} characters or longer than {TOKEN_BYTES_MAX}")
        if not _TOKEN.fullmatch(token):
            raise InvalidCall(f"{which} has characters that can't stand in a header")
    return [digest_of(token) for token in tokens]


def _file_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(TOKEN_FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise AccessDenied(f"no token in {file}: {cause.strerror}") from None
    if len(raw) > TOKEN_FILE_BYTES_MAX:
        raise InvalidCall(f"{file} is longer than {TOKEN_FILE_BYTES_MAX} bytes: no file of tokens")
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        # The cause would show what was read, which may be a token.
        raise InvalidCall(f"{file} isn't ASCII: no file of tokens") from None
