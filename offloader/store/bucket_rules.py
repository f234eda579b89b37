"""Effects of a bucket's lifecycle rules, versioning and object lock on the objects of a store. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from offloader.store.base import PROBE_PREFIX

#: Configurations of a bucket, and the permission that reads each.
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
            AccessDeniedError: the permission to read it is missing.
            UnsupportedError: the server doesn't offer it.
            OffloaderError: the server doesn't answer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFinding:
    """A finding about one configuration.

    Attributes:
        hint: the remedy; empty: none is needed.
        is_problem: whether data becomes lost or unreadable without the remedy.
    """

    check: str
    what: str
    hint: str = ""
    is_problem: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    """An enabled lifecycle rule that applies to objects of the store.

    Attributes:
        is_whole: whether it applies to all of them.
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
        known = f"{len(rules)} rules apply to the store; none deletes or archives its objects"
        yield BucketFinding(check=check, what=known if rules else "no rule applies to the store")
    check = "bucket unfinished uploads"
    aborted = _fewest_days(rules, "AbortIncompleteMultipartUpload", "DaysAfterInitiation")
    if aborted is None:
        yield BucketFinding(
            check=check,
            what="no rule aborts the unfinished uploads of terminated processes",
            hint=f"add a rule AbortIncompleteMultipartUpload after {ABORT_DAYS} days",
        )
    else:
        yield BucketFinding(check=check, what=f"a rule aborts unfinished uploads after {aborted} days")


def _harms(rule: _Rule) -> Iterator[tuple[str, str]]:
    """Effects of a rule that lose data or make it unreadable, each with the remedy."""
    when = _when(rule.raw.get("Expiration", {}))
    if when:
        yield (
            f"deletes objects {when}, both segments and manifests,",
            "remove the rule before then; let offloader's retention delete data (docs/explanation/retention.md)",
        )
    for transition in rule.raw.get("Transitions", ()):
        kind = transition.get("StorageClass", "")
        if kind in ARCHIVES:
            yield (
                f"moves objects to {kind} {_when(transition)}",
                "remove the rule, or use GLACIER_IR: archived objects can't be read until they are restored",
            )


def _when(step: Mapping[str, Any]) -> str:
    if "Days" in step:
        return f"after {step['Days']} days"
    return f"on {str(step['Date'])[:10]}" if "Date" in step else ""


def versioning_findings(
    answer: Mapping[str, Any] | None, lifecycle: Mapping[str, Any] | None, root: str
) -> Iterator[BucketFinding]:
    """The finding about old versions of deleted and replaced objects.

    Args:
        answer: S3's description of the versioning.
        lifecycle: as in ``lifecycle_findings``; ``None`` also if it can't be read.
    """
    check, status = "bucket versions", (answer or {}).get("Status")
    if status is None:
        yield BucketFinding(check=check, what="versioning is off: deletions free space immediately and can't be undone")
        return
    ends = _fewest_days(_rules(lifecycle, root), "NoncurrentVersionExpiration", "NoncurrentDays")
    kept = "old versions are" if status == "Enabled" else "old versions from before versioning was suspended are"
    if ends is None:
        yield BucketFinding(
            check=check,
            what=f"{kept} kept, and billed, forever: of objects that cleanup deletes, and of replaced boundaries",
            hint="add a rule NoncurrentVersionExpiration, with enough days to notice an accidental deletion",
        )
    else:
        yield BucketFinding(
            check=check,
            what=f"{kept} kept for {ends} days: deleted objects use space, and can be recovered, for that long",
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
            what=f"each version is locked for {days} days ({retention.get('Mode', 'in an unknown mode')}): after a "
            "cleanup, the bytes of deleted objects, and versions due to expire, remain until the lock ends",
            hint="plan cleanup.grace_period and the budget with these days, or lock a copy of the bucket instead",
        )
    elif lock.get("ObjectLockEnabled") == "Enabled":
        yield BucketFinding(check=check, what="enabled without a default retention: new objects aren't locked")
    else:
        yield BucketFinding(check=check, what="off: cleanup can delete objects")


def _rules(answer: Mapping[str, Any] | None, root: str) -> Sequence[_Rule]:
    """The enabled rules that apply to objects below ``root`` other than the scratch objects of probes. Rules for tags
    never apply: offloader's objects have no tags."""
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
    """Smallest number of days after which a rule for all objects takes an action; ``None``: no rule does."""
    found = [rule.raw.get(action, {}).get(name) for rule in rules if rule.is_whole]
    return min((int(days) for days in found if days is not None), default=None)
