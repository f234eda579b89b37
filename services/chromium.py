"""The browser that the page is tested in.

It doesn't start or download one.
"""

from __future__ import annotations

import os
import shutil

from services.servers import Unavailable

__all__ = ["find_chromium"]

#: Names of the program, as systems call it.
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """Its path; ``OFFLOADER_CHROMIUM`` names another one.

    Raises:
        Unavailable: there is none.
    """
    for name in (os.environ.get("OFFLOADER_CHROMIUM", ""), *NAMES):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise Unavailable(
        "there is no Chromium here; Debian: apt-get install -y chromium, or name one in OFFLOADER_CHROMIUM"
    )
