"""Files in the cache folder with which a local Spark starts sooner: an archive of its classes, and a home of links.

The JVM maps the archive instead of reading 15,000 classes from jars. It checks the archive's checksums, its own version
and the class path, and starts without an archive that doesn't fit. A truncated archive makes it crash: the file's name
has the size, which is compared first. The home is Spark's folder without its zip of Python modules: workers then import
the installed package, which Python has compiled; modules in the zip are compiled again by each process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Archives that are kept, of 170 MB each: the last used ones.
ARCHIVES_MAX = 2
#: Time without a write after which a recorded archive counts as complete.
SETTLED_S = 10.0
#: Age from which a recording that isn't complete is removed; until then no other one begins.
RECORDING_S_MAX = 3600.0
#: Options of the JVM for short work: it compiles quickly instead of well, and collects garbage in one thread.
SHORT_WORK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

_LINKED = ("bin", "conf", "jars", "sbin")
#: Options that users give to Spark's JVM: another archive or garbage collector beside ours would be an error.
_JVM_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_NO_WARNINGS = ("-Xlog:cds*=off", "-Xlog:class+path*=off")
#: Settings that add folders to the class path; the JVM archives no classes then.
_CLASS_PATH_VARIABLES = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "YARN_CONF_DIR")
#: First bytes of an archive that isn't complete: the JVM writes its header last.
_NO_HEADER = bytes(4)


@dataclass(frozen=True, slots=True)
class Launch:
    """How Spark's JVM is started.

    Attributes:
        home: the folder for SPARK_HOME; ``None``: Spark's own.
        java_options: options of the JVM, quoted for ``spark.driver.extraJavaOptions``.
        archive: the file that the JVM is asked to map, ``None``: none.
    """

    home: Path | None = None
    java_options: tuple[str, ...] = ()
    archive: Path | None = None


def prepare_launch(spark: Path, version: str, java: Path, folder: Path, now_s: float, *, record: bool) -> Launch:
    """Finds or makes the files; without them where ``folder`` can't be written or belongs to another user.

    Args:
        spark: folder of the installed package ``pyspark``.
        version: its version.
        java: the executable.
        folder: where the files are kept; made if it is missing.
        now_s: the time, in seconds since 1970.
        record: whether the JVM may write the archive at its end if there is none, which takes about 15 s of processor.
            It does so from the second start on: where no file is kept between two starts, an archive is of no use.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = folder.stat()
        if kept.st_uid != os.getuid() or kept.st_mode & 0o022 or '"' in str(folder):
            return Launch()
        folder = folder.resolve()
        home = folder / f"home-{_digest(spark, version, *_links(spark))}"
        is_first = not home.exists()
        if is_first:
            _make_home(home, spark)
        if has_jvm_options() or "conf" in _links(spark) or any(os.environ.get(name) for name in _CLASS_PATH_VARIABLES):
            return Launch(home)
        name = f"classes-{version}-{_digest(home, java, _build_of(java))}"
        _adopt(folder, name, now_s)
        archive = _whole_archive(folder, name)
        _prune(folder, now_s)
        if archive is not None:
            checked = ("-XX:+UnlockDiagnosticVMOptions", "-XX:+VerifySharedSpaces")
            return Launch(home, (f'"-XX:SharedArchiveFile={archive}"', *checked, *_NO_WARNINGS), archive)
        if not record or is_first or any(folder.glob("*.new")):
            return Launch(home)
        recorded = folder / f"{name}.{uuid.uuid4().hex}.new"
        return Launch(home, (f'"-XX:ArchiveClassesAtExit={recorded}"', *_NO_WARNINGS))
    except OSError:
        return Launch()


def has_jvm_options() -> bool:
    """Whether the environment has options for the JVM: ours, but for the folder of links, are left out then."""
    return any(os.environ.get(name) for name in _JVM_VARIABLES)


def drop_refused_archive(launch: Launch, process_id: int) -> None:
    """Removes an archive that the running JVM didn't map, so that another one is made."""
    with suppress(OSError):
        maps = Path(f"/proc/{process_id}/maps").read_text(encoding="utf-8", errors="replace")
        if launch.archive is not None and str(launch.archive) not in maps:
            launch.archive.unlink(missing_ok=True)


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _links(spark: Path) -> list[str]:
    return [name for name in _LINKED if (spark / name).is_dir()]


def _build_of(java: Path) -> str:
    """Version information of its installation; the JVM itself compares more."""
    with suppress(OSError, UnicodeDecodeError):
        return (java.parent.parent / "release").read_text(encoding="utf-8")
    return str(java.stat().st_mtime_ns)


def _make_home(home: Path, spark: Path) -> None:
    made = home.with_name(f"{home.name}.{uuid.uuid4().hex}")
    made.mkdir(mode=0o700)
    for name in _links(spark):
        (made / name).symlink_to(spark / name, target_is_directory=True)
    try:
        made.rename(home)
    except OSError:  # another process created it
        shutil.rmtree(made)


def _adopt(folder: Path, name: str, now_s: float) -> None:
    """Gives a complete recording the archive's name."""
    for recorded in folder.glob(f"{name}.*.new"):
        with suppress(OSError), recorded.open("rb") as file:
            is_complete, found = file.read(len(_NO_HEADER)) not in (b"", _NO_HEADER), recorded.stat()
            if is_complete and now_s - found.st_mtime > SETTLED_S:
                recorded.replace(folder / f"{name}.{found.st_size}.jsa")


def _whole_archive(folder: Path, name: str) -> Path | None:
    """The archive of this name, marked as used; one that doesn't have its size is removed."""
    whole = None
    for archive in sorted(folder.glob(f"{name}.*.jsa")):
        with suppress(OSError):
            if archive.name == f"{name}.{archive.stat().st_size}.jsa":
                whole = archive
                os.utime(archive)
            else:
                archive.unlink()
    return whole


def _prune(folder: Path, now_s: float) -> None:
    for recorded in folder.glob("*.new"):
        with suppress(OSError):
            if now_s - recorded.stat().st_mtime > RECORDING_S_MAX:
                recorded.unlink()
    with suppress(OSError):
        for old in sorted(folder.glob("classes-*.jsa"), key=lambda each: each.stat().st_mtime)[:-ARCHIVES_MAX]:
            old.unlink(missing_ok=True)
    for home in folder.glob("home-*"):
        if not (home / "jars").exists():  # of a removed installation
            shutil.rmtree(home, ignore_errors=True)
