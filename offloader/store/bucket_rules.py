"""What a bucket's lifecycle rules, versioning and object lock do to the objects of a store. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from offloader.store.base import PROBE_PREFIX

#: Configurations of a bucket, and the permission to read each.
LIFECYCLE, VERSIONING, OBJECT_LOCK = "lifecycle", "versioning", "object lock"
PERMISSIONS: Mapping[str, str] = {
    LIFECYCLE: "s3:GetLifecycleConfiguration",
    VERSIONING: "s3:GetBucketVersioning",
    OBJECT_LOCK: "s3:GetBucketObjectLockConfiguration",
}
#: Classes whose objects have to be restored before they can be read.
ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
#: Recommended age at which a rule aborts unfinished uploads: longer than an upload may take.
ABORT_DAYS = 7


@runtime_checkable
class Bucket(Protocol):
    """A store that is (a part of) a bucket with such configurations."""

    @property
    def root(self) -> str:
        """Prefix of all keys, ending with a slash; empty: the whole bucket."""

    def bucket_configuration(self, what: str) -> Mapping[str, Any] | None:
        """One of the configurations as S3 describes it; ``None``: the bucket has none.

        Raises:
            AccessDenied: the permission to read it is missing.
            Unsupported: the server doesn't offer it.
            OffloaderError: the server doesn't answer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFinding:
    """A finding about one configuration.

    Attributes:
        hint: the remedy; empty: none is needed.
        is_problem: whether data is lost or can't be read if nothing is done.
    """

    check: str
    what: str
    hint: str = ""
    is_problem: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    """An enabled lifecycle rule that concerns objects of the store.

    Attributes:
        is_whole: whether it concerns all of them.
    """

    name: str
    where: str
    is_whole: bool
    raw: Mapping[str, Any]


def lifecycle_findings(answer: Mapping[str, Any] | None, root: str) -> Iterator[BucketFinding]:
    """Findings about rules that expire or archive objects of the store, and about unfinished uploads.

    Args:
        answer: S3's description of the rules; ``None``: there are none.
        root: prefix of the store's keys.
    """
    check, rules = "bucket lifecycle", _rules(answer, root)
    harms = [(rule, *harm) for rule in rules for harm in _harms(rule)]
    for rule, what, hint in harms:
        yield BucketFinding(check=check, what=f"rule {rule.name} {what} {rule.where}", hint=hint, is_problem=True)
    if not harms:
        known = f"{len(rules)} rules concern the store, none deletes or archives what it has"
        yield BucketFinding(check=check, what=known if rules else "no rule concerns the store")
    check = "bucket unfinished uploads"
    aborted = _fewest_days(rules, "AbortIncompleteMultipartUpload", "DaysAfterInitiation")
    if aborted is None:
        yield BucketFinding(
            check=check,
            what="no rule aborts those of a process that never comes back",
            hint=f"add a rule AbortIncompleteMultipartUpload after {ABORT_DAYS} days",
        )
    else:
        yield BucketFinding(check=check, what=f"a rule aborts them after {aborted} days")


def _harms(rule: _Rule) -> Iterator[tuple[str, str]]:
    """What a rule does that loses data or makes it unreadable, and the remedy."""
    when = _when(rule.raw.get("Expiration", {}))
    if when:
        yield (
            f"deletes objects {when}, segments and manifest alike,",
            "remove it before that: what may go depends on who still reads (docs/explanation/retention.md)",
        )
    for transition in rule.raw.get("Transitions", ()):
        kind = transition.get("StorageClass", "")
        if kind in ARCHIVES:
            yield (
                f"moves objects to {kind} {_when(transition)}",
                "remove it, or name GLACIER_IR: archived objects can't be read until they are restored",
            )


def _when(step: Mapping[str, Any]) -> str:
    if "Days" in step:
        return f"after {step['Days']} days"
    return f"on {str(step['Date'])[:10]}" if "Date" in step else ""


def versioning_findings(
    answer: Mapping[str, Any] | None, lifecycle: Mapping[str, Any] | None, root: str
) -> Iterator[BucketFinding]:
    """The finding about what happens to deleted and replaced objects.

    Args:
        answer: S3's description of the versioning.
        lifecycle: as in ``lifecycle_findings``; ``None`` also if it can't be read.
    """
    check, status = "bucket versions", (answer or {}).get("Status")
    if status is None:
        yield BucketFinding(check=check, what="none are kept: what is deleted is gone at once")
        return
    ends = _fewest_days(_rules(lifecycle, root), "NoncurrentVersionExpiration", "NoncurrentDays")
    kept = "are kept" if status == "Enabled" else "from before versioning was suspended are kept"
    if ends is None:
        yield BucketFinding(
            check=check,
            what=f"old versions {kept} and paid for without end: what cleanup deletes, and each replaced boundary",
            hint="add a rule NoncurrentVersionExpiration after as many days as a mistake may go unnoticed",
        )
    else:
        yield BucketFinding(
            check=check,
            what=f"old versions {kept} for {ends} days: that long a deletion frees nothing, and can be taken back",
        )


def lock_findings(answer: Mapping[str, Any] | None) -> Iterator[BucketFinding]:
    """The finding about object lock.

    Args:
        answer: S3's description of the lock; ``None``: there is none.
    """
    check, lock = "bucket object lock", (answer or {}).get("ObjectLockConfiguration", {})
    retention = lock.get("Rule", {}).get("DefaultRetention", {})
    days = retention.get("Days") or 365 * (retention.get("Years") or 0)
    if days:
        yield BucketFinding(
            check=check,
            what=f"each version is locked for {days} days ({retention.get('Mode', 'in an unknown mode')}): cleanup "
            "deletes the current one, its bytes can't be removed before, and rules that expire versions wait as long",
            hint="set cleanup.grace_period and the budget by that, or lock a copy of the bucket instead",
        )
    elif lock.get("ObjectLockEnabled") == "Enabled":
        yield BucketFinding(check=check, what="possible, with no retention by default: nothing is locked by it")
    else:
        yield BucketFinding(check=check, what="none: cleanup can delete")


def _rules(answer: Mapping[str, Any] | None, root: str) -> Sequence[_Rule]:
    """The enabled rules that concern objects below ``root``, but for the scratch objects of probes. Rules for tags
    concern none: no object has any."""
    found = []
    for number, raw in enumerate((answer or {}).get("Rules", ()), 1):
        chosen = raw.get("Filter", {})
        both = {**chosen, **chosen.get("And", {})}
        prefix = both.get("Prefix", raw.get("Prefix", ""))
        concerns = root.startswith(prefix) or (
            prefix.startswith(root) and not prefix.startswith(f"{root}{PROBE_PREFIX}")
        )
        if raw.get("Status") != "Enabled" or "Tag" in both or both.get("Tags") or not concerns:
            continue
        sizes = [name for name in ("ObjectSizeGreaterThan", "ObjectSizeLessThan") if name in both]
        where = f"below {prefix}" if prefix else "in the whole bucket"
        is_whole = root.startswith(prefix) and not sizes
        found.append(_Rule(raw.get("ID") or str(number), f"{where}, by size" if sizes else where, is_whole, raw))
    return found


def _fewest_days(rules: Sequence[_Rule], action: str, name: str) -> int | None:
    """After how many days a rule for all objects takes an action; ``None``: none does."""
    found = [rule.raw.get(action, {}).get(name) for rule in rules if rule.is_whole]
    return min((int(days) for days in found if days is not None), default=None)
