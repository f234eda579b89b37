"""Draw the pictures of the web page: ``python -m docs.page_pictures`` runs its tests and keeps what they see."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
#: Where the documents have them.
FOLDER = ROOT / "docs" / "how-to" / "pictures"
TESTS = "tests/proof/browser/test_page_states.py"
#: Colours of a picture: text stays sharp, and the file is a third.
COLOURS = 160
#: Rows of a picture: what lies below is the same in each state.
HEIGHT_MAX = {1280: 1280, 390: 1500}


def main() -> int:
    """Returns the exit code of the tests; pictures are replaced only if they pass."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", TESTS, "-k", "each_state"]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OFFLOADER_PICTURES": folder}, check=False)
        if done.returncode:
            return done.returncode
        FOLDER.mkdir(exist_ok=True)
        for path in sorted(Path(folder).glob("page-*.png")):
            shrink(path, FOLDER / path.name)
    return 0


def shrink(path: Path, to: Path) -> None:
    """Writes the upper part of a picture with few colours."""
    with Image.open(path) as picture:
        height = min(picture.height, HEIGHT_MAX[picture.width])
        part = picture.convert("RGB").crop((0, 0, picture.width, height))
        part.quantize(COLOURS, dither=Image.Dither.NONE).save(to, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
