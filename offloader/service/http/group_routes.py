"""Routes of reader groups."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path

from offloader.errors import OffloaderError
from offloader.groups.group_service import GroupOutcome, ReaderGroups, group_facts
from offloader.groups.reader_groups import RetentionType
from offloader.service.http.schemas import (
    CheckpointRequest,
    GroupRequest,
    GroupRow,
    Items,
    Known,
    TruncationRequest,
    decoded,
    guarded_router,
    shown,
)
from offloader.service.queries import ServiceControl

_log = logging.getLogger("offloader.service.commands")
#: A name has 255 characters at most, of one byte each.
_PART_CHARS_MAX = 3 * 255


def _group_name(group: Annotated[str, Path(description="Percent-encoded.", max_length=_PART_CHARS_MAX)]) -> str:
    return decoded(group, "group's name")


GroupName = Annotated[str, Depends(_group_name)]


def group_routes(control: ServiceControl) -> APIRouter:
    """Routes of reader groups. Readers use the library or the command line: HTTP doesn't serve a group's entries."""
    router = guarded_router("/v1/groups", tag="groups")

    @router.get("", response_model_exclude_unset=True)
    def listed() -> Items[GroupRow]:
        """List the reader groups of the store. A group with a damaged document has only `error`."""
        return Items[GroupRow](items=[_row(control.groups, name) for name in control.groups.names()])

    @router.get("/{group}", response_model_exclude_unset=True)
    def group(name: GroupName) -> GroupRow:
        """Return one reader group: its streams, the share of each reader, its checkpoints and its published cuts."""
        return shown(GroupRow, group_facts(control.groups.get(name)))

    @router.put("/{group}", response_model_exclude_unset=True)
    def configure(caller: Known, name: GroupName, body: GroupRequest) -> GroupRow:
        """Create a reader group, or change its streams, type or checkpoint interval."""
        kind, period_ms = RetentionType(body.type), body.automatic_checkpoint_ms
        return _done("configure", caller.name, control.groups.configure(name, body.streams, kind, period_ms))

    @router.post("/{group}/checkpoints", response_model_exclude_unset=True)
    def initiate_checkpoint(caller: Known, name: GroupName, body: CheckpointRequest) -> GroupRow:
        """Start a checkpoint, which is complete when every reader has passed it."""
        return _done("checkpoint", caller.name, control.groups.initiate_checkpoint(name, body.name, keep=body.keep))

    @router.put("/{group}/truncation-checkpoint", response_model_exclude_unset=True)
    def update_truncation_checkpoint(caller: Known, name: GroupName, body: TruncationRequest) -> GroupRow:
        """Publish a kept checkpoint of a group of type manual: retention may delete everything before it."""
        return _done("publish", caller.name, control.groups.update_truncation_checkpoint(name, body.checkpoint))

    @router.delete("/{group}", response_model_exclude_unset=True)
    def remove(caller: Known, name: GroupName) -> GroupRow:
        """Remove a reader group: its readers stop, and its subscriptions are removed."""
        return _done("remove", caller.name, control.groups.delete(name))

    return router


def _row(groups: ReaderGroups, name: str) -> GroupRow:
    try:
        return shown(GroupRow, group_facts(groups.get(name)))
    except OffloaderError as error:
        return GroupRow(group=name, error=error.message)


def _done(what: str, by: str, outcome: GroupOutcome) -> GroupRow:
    """The group after a change; raises the first error of a stream that couldn't be updated."""
    name = outcome.group.name
    extra: dict[str, Any] = {"event": "asked", "group": name, "command": what, "by": by}
    _log.info("%s of reader group %s, requested by %s", what, name, by, extra=extra)
    for _, error in outcome.failed:
        raise error
    refused = [{"action": row.action, "stream": row.stream, "why": why} for row, why in outcome.refused]
    return shown(GroupRow, {**group_facts(outcome.group), "refused": refused})
