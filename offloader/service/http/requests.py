"""What may be sent over HTTP, as types: the bodies of requests.

Owns names and kinds of members. Must never take a member it doesn't know: a misspelt one would silently mean nothing.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["POSITION", "OffloadRequest", "PauseRequest", "PublishRequest", "SubscribeRequest"]

POSITION = "A position is LEDGER:ENTRY."
#: Longest text that a client may give for people to read.
TEXT_CHARS_MAX = 1000
_At = str | dict[str, str]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class OffloadRequest(_Request):
    until: str = Field(
        default="", max_length=50, description=f"Last entry that has to be in it; default: the newest. {POSITION}"
    )
    wait_seconds: float = Field(
        default=30.0, ge=0, le=3600, description="How long to wait for the commit, at most http.answer_seconds_max."
    )


class PauseRequest(_Request):
    reason: str = Field(default="", max_length=TEXT_CHARS_MAX, description="Why, for who reads the manifest.")


class SubscribeRequest(_Request):
    start: _At | None = Field(
        default=None, description='Where it begins: "7:12", "latest", or {"0": "7:12"} by partition.'
    )
    generation: int = Field(default=0, ge=0, lt=2**31)


class PublishRequest(_Request):
    at: _At = Field(
        description='The first entry still needed: "7:12", "latest", or of a partitioned topic {"0": "7:12"}.'
    )
    generation: int | None = Field(
        default=None, ge=0, lt=2**31, description="Refuse unless the subscriber has this one."
    )
