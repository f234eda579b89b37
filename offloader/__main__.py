"""The command ``offloader``, also as ``python -m offloader``."""

from __future__ import annotations

import sys

from offloader.errors import Unsupported


def main() -> int:
    """Runs the command of ``sys.argv``; its exit code. Names the extra that is missing where only the library is."""
    try:
        from offloader.cli.main import main as run
    except Unsupported as error:
        print(f"offloader: {error.message}\nhint: {error.hint}", file=sys.stderr)  # noqa: T201 - a command
        return error.exit_code
    return run()


if __name__ == "__main__":
    sys.exit(main())
