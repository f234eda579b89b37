"""``offloader serve``: signals, log, service manager and exit of the serving process.

No data depends on an orderly exit: the process may be killed at any time.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from offloader.cli.options import Config
from offloader.errors import InvalidCallError, OffloaderError, StoreUnavailableError
from offloader.runtime.clock import SystemClock
from offloader.runtime.logs import log_to
from offloader.service.bootstrap import assemble, has_feed, require_sound
from offloader.service.health import OutageFilter
from offloader.service.process import NO_FEED, RecentErrors, ServingProcess
from offloader.settings.layered import SettingsFile, read_settings_file

_log = logging.getLogger("offloader.service")

#: Latency of a signal that arrives between two waits.
WAIT_S = 1.0


def run(
    config: Config = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the settings file.")] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Answer HTTP requests only: own no stream, change nothing.")
    ] = False,
) -> int:
    """Offload streams, run retention and cleanup, and answer HTTP requests until stopped.

    On SIGTERM or SIGINT, the process completes the current segments within offload.drain_timeout and exits (exit code 4
    if work remains for the next start). A second signal ends it immediately without data loss: the next start reads
    uncommitted entries from their source again. On SIGHUP, it reads the settings file again, logs settings that need a
    restart, and ignores a file with mistakes.

    With --read-only, it answers requests from the store alone. You can run any number of such processes behind a load
    balancer with the same settings file; they can serve ledgers to brokers.

    Examples:
        offloader serve --config offloader.toml
        offloader serve --config offloader.toml --read-only
    """
    if not config:
        raise InvalidCallError(
            "no settings file was given", hint="give --config FILE; `offloader config sample` prints one with comments"
        )
    file = read_settings_file(config)
    settings = file.settings_of("")
    require_sound(settings, read_only=read_only)
    if check:
        print(f"{config}: all settings are valid")
        if not read_only and not has_feed(settings):
            print(f"note: {NO_FEED}")
        return 0
    return _Service(file, config, read_only=read_only).run()


def notify(*states: str) -> None:
    """Sends states of the service to systemd, as ``sd_notify``: ``READY=1`` and a ``STATUS=`` text. Does nothing
    without a socket in the environment."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        try:
            # A leading @ stands for the zero byte of an abstract address.
            sender.sendto("\n".join(states).encode(), f"\0{path[1:]}" if path.startswith("@") else path)
        except OSError as error:
            _log.debug("no notification of the service manager: %s", error)


class _Service:
    def __init__(self, file: SettingsFile, config: str, *, read_only: bool) -> None:
        self._file, self._config, self._read_only = file, config, read_only
        self._clock = SystemClock()
        self._wake = threading.Event()
        self._reload = False
        self._stopped_by = 0
        self._handler = log_to(sys.stderr, as_json=file.settings_of("").serve.log_format == "json")

    def run(self) -> int:
        recent, logger = RecentErrors(), logging.getLogger("offloader")
        logger.addHandler(recent)
        self._log_from(self._file.settings_of("").serve.log_level)
        try:
            with self._signals():
                return self._serve(recent)
        finally:
            logger.removeHandler(recent)
            logger.removeHandler(self._handler)

    def _serve(self, recent: RecentErrors) -> int:
        assembled = assemble(self._file, clock=self._clock, recent=recent, read_only=self._read_only)
        process = assembled.process
        self._handler.addFilter(OutageFilter(lambda: process.is_out))
        try:
            process.start()
        except BaseException:
            process.stop(drain=False)
            raise
        notify("READY=1", f"STATUS=serving {assembled.store.url}")
        while not self._stopped_by:
            self._clock.wait(self._wake, WAIT_S)
            self._wake.clear()
            if self._reload and not self._stopped_by:
                self._reload = False
                self._read_again(process)
        name = signal.Signals(self._stopped_by).name
        _log.info("%s: completing the current segments", name, extra={"event": "signal", "signal": name})
        notify("STOPPING=1", "STATUS=completing the current segments")
        left = self._ended(process)
        if left:
            raise StoreUnavailableError(
                f"stopped {left} streams before all entries were offloaded",
                hint="no data is lost: the next start continues with them",
            )
        return 0

    def _ended(self, process: ServingProcess) -> int:
        """Stops within the limits: an unresponsive store must not delay a machine's shutdown."""
        drain_s = max((each.settings.offload.drain_timeout for each in process.streams.all()), default=0.0)
        limit_s = drain_s + process.streams.settings_of("").serve.stop_timeout
        done = threading.Event()

        def give_up() -> None:
            if not self._clock.wait(done, limit_s):
                sys.stderr.write(f"offloader: not stopped within {limit_s:g} s: exiting; no data is lost\n")
                sys.stderr.flush()
                os._exit(StoreUnavailableError("").exit_code)

        threading.Thread(target=give_up, name="offloader-stop", daemon=True).start()
        try:
            return process.stop()
        finally:
            done.set()

    def _read_again(self, process: ServingProcess) -> None:
        notify("RELOADING=1", f"MONOTONIC_USEC={int(self._clock.monotonic_s() * 1_000_000)}")
        try:
            found = process.reload(read_settings_file(self._config))
        except OffloaderError as error:
            process.refused_reload(error)
            _log.error("reload failed, the settings are unchanged: %s", error, extra={"event": "reload_refused"})
        else:
            self._log_from(found.file.settings_of("").serve.log_level)
            changed, restart = ", ".join(found.changed) or "nothing", ", ".join(found.needs_restart)
            extra = {"event": "reloaded", "changed": list(found.changed), "needs_restart": list(found.needs_restart)}
            _log.info("settings reloaded, changed: %s", changed, extra=extra)
            if restart:
                _log.warning("needs a restart to take effect: %s", restart, extra={"event": "needs_restart"})
        notify("READY=1", "STATUS=serving")

    def _log_from(self, level: str) -> None:
        """Sets the log level; the web page gets warnings at every level."""
        number = logging.getLevelNamesMapping()[level.upper()]
        logging.getLogger("offloader").setLevel(min(number, logging.WARNING))
        self._handler.setLevel(number)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        handlers = {signal.SIGTERM: self._on_stop, signal.SIGINT: self._on_stop, signal.SIGHUP: self._on_reload}
        before = {each: signal.signal(each, handle) for each, handle in handlers.items()}
        try:
            yield
        finally:
            for each, old in before.items():
                signal.signal(each, old)

    def _on_stop(self, number: int, _: FrameType | None) -> None:
        if self._stopped_by:
            # Safe in any state, as the process may be killed at any time.
            os.write(2, b"offloader: stopped immediately; no data is lost, the next start continues\n")
            os._exit(128 + number)
        self._stopped_by = number
        self._wake.set()

    def _on_reload(self, _number: int, _: FrameType | None) -> None:
        self._reload = True
        self._wake.set()
