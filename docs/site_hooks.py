"""Hooks of the site's generator: pages outside docs/ become part of the site, and links between both keep working."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Folder of the site for files that the documents link to and that lie outside of docs/.
PROJECT = "project"
#: Pages outside of docs/ that are part of the site.
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md", "pulsar-plugin/README.md")
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^( *```\w+) [^\n`]*$", re.M)
_CODE = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages outside of docs/ and every other file there that a page links to."""
    wanted = set(PAGES)
    for page in [*DOCS.rglob("*.md"), *(ROOT / name for name in PAGES)]:
        for _, target, _, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            path = _path(page, target)
            if path is not None and DOCS not in path.parents and path.is_file():
                wanted.add(str(path.relative_to(ROOT)))
    for name in sorted(wanted):
        files.append(File.generated(config, f"{PROJECT}/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links at where the site has the file; drops words after a fence's language, which only tests read."""
    source = page.file.src_uri
    here = ROOT / source.removeprefix(f"{PROJECT}/") if source.startswith(f"{PROJECT}/") else DOCS / source
    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(lambda found: _moved(found, here, source), part) for part in parts[::2]]
    return _FENCE.sub(r"\1", "".join(parts))


def _moved(found: re.Match[str], here: Path, source: str) -> str:
    path = _path(here, found[2])
    if path is None or not path.is_file():
        return found[0]
    target = path.relative_to(DOCS) if DOCS in path.parents else Path(PROJECT) / path.relative_to(ROOT)
    return f"{found[1]}{os.path.relpath(target, Path(source).parent)}{found[3] or ''}{found[4]}"


def _path(page: Path, target: str) -> Path | None:
    """The file of the repository that a link leads to; ``None`` for other sites."""
    if re.match(r"[a-z+]+:", target):
        return None
    return Path(os.path.normpath(page.parent / target))
