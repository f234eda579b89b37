"""``python -m offloader``: the command ``offloader``."""

from __future__ import annotations

import sys

from offloader.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
