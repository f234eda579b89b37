"""The command ``offloader``, also as ``python -m offloader``."""

from __future__ import annotations

import gc
import sys

from offloader.errors import UnsupportedError


def main() -> int:
    """Runs the command of ``sys.argv``; its exit code. Names the extra that is missing where only the library is.

    What a command imports stays until it ends. The garbage collector would look through it while it grows, and once
    more at the end: together a fifth of a short command's time.
    """
    gc.disable()
    try:
        from offloader.cli.main import main as run

        return run(on_loaded=_collect_from_now)
    except UnsupportedError as error:
        print(f"offloader: {error.message}\nhint: {error.hint}", file=sys.stderr)  # noqa: T201 - a command
        return error.exit_code
    finally:
        gc.disable()
        gc.freeze()


def _collect_from_now() -> None:
    """Collects garbage among what comes after the imports."""
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    sys.exit(main())
