"""What a store's URL may say, and how it is shown to people.

Owns both. Must never let what may be a secret into a message, an error or a log.
"""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit, urlunsplit

from offloader.errors import InvalidCall

__all__ = ["require_place_only", "without_secrets"]


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without user, password, query and fragment."""
    plain = url.partition("?")[0].partition("#")[0]
    try:
        parts = urlsplit(plain)
    except ValueError:  # no URL; where a password would stand in it nobody knows
        return plain.rpartition("@")[2]
    shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
    return (shown if parts.netloc else shown.rpartition("@")[2]).rstrip("/")


def require_place_only(url: str) -> None:
    """Of the schemes of our own: a URL says where a store is and nothing else.

    Raises:
        InvalidCall: it says more, or is no URL; what it says isn't repeated.
    """
    scheme = url.partition("://")[0]
    try:
        parts: SplitResult = urlsplit(url)
    except ValueError as error:
        raise InvalidCall(f"the {scheme} URL can't be read: {error}", hint=f"give {scheme}://NAME/root") from error
    if "@" in parts.netloc:
        raise InvalidCall(
            f"the {scheme} URL carries credentials",
            hint="leave them out of the URL: use the environment, a profile, or access_key and secret_key",
        )
    if "?" in url or "#" in url:
        raise InvalidCall(
            f"{without_secrets(url)} is followed by a ? or # and more, which means nothing here",
            hint="leave it out (settings have options of their own); in a name write %3F for ? and %23 for #",
        )
