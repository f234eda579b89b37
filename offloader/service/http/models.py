"""What goes over HTTP, as types: the bodies of requests, and for the description the shapes of answers.

Owns names and kinds of members. Must never take a member it doesn't know: a misspelt one would silently mean nothing.
Answers may have more members than are named here: what is said of a stream is the status document's business.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Applied",
    "Committed",
    "Health",
    "Items",
    "ListPage",
    "OffloadRequest",
    "PauseRequest",
    "Paused",
    "ProblemDetails",
    "PublishRequest",
    "Ready",
    "ReadyProblem",
    "Removed",
    "SubscribeRequest",
]

_Row = TypeVar("_Row")

_POSITION = "A position is LEDGER:ENTRY."
#: Longest text that a client may give for people to read.
TEXT_CHARS_MAX = 1000
_At = str | dict[str, str]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class OffloadRequest(_Request):
    until: str = Field(
        default="", max_length=50, description=f"Last entry that has to be in it; default: the newest. {_POSITION}"
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


class ProblemDetails(_Answer):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What, where, why.")
    kind: str = Field(description="What to do: fix_call, not_found, retry_later, fenced, repair_data, denied, bug, ...")
    hint: str = Field(description="What to do, in words; may be empty.")


class Health(_Answer):
    status: str


class ReadyProblem(_Answer):
    where: str
    what: str
    hint: str = ""
    since_ms: int | None = None
    blocks_ready: bool


class Ready(_Answer):
    ready: bool
    problems: list[ReadyProblem] | None = Field(description="What is missing; only for those who may read.")


class ListPage(_Answer, Generic[_Row]):
    items: list[_Row]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this was the last one.")
    total: int = Field(description="Items on all pages, now.")


class Items(_Answer):
    items: list[dict[str, Any]]


class Committed(_Answer):
    stream: str
    committed: str | None = Field(description=f"End of what is readable in the cold tier. {_POSITION}")


class Paused(_Answer):
    stream: str
    paused: bool
    changed: bool = Field(description="False: it was so already.")
    assigned: int = Field(description="Segments under way; they complete.")
    committed: str | None


class Applied(_Answer):
    stream: str
    subscriber: str
    generation: int


class Removed(_Answer):
    stream: str
    subscriber: str
    removed: bool = Field(description="False: its generation is higher than the one given.")
