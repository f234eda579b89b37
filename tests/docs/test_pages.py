"""The samples of the pages in the gate run and print the documented output; every fence has a known info string."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.worlds import GATE, PAGES, ROOT, Part, parts_of, run_part
from tests.support.pages import World, blocks_of, fits, is_known, run_blocks


@pytest.mark.parametrize("part", [each for page in GATE for each in parts_of(page)])
def test_page_samples_run_and_print_documented_output(
    part: Part, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_part(part, tmp_path, request)


def test_fences_have_known_info_strings() -> None:
    wrong = []
    for page in PAGES:
        blocks = list(blocks_of((ROOT / page).read_text(encoding="utf-8")))
        wrong += [f"{page}:{block.line}: {block.words}" for block in blocks if not is_known(block)]
        wrong += [
            f"{page}:{after.line}: output of nothing"
            for before, after in pairwise([None, *blocks])
            if after and after.kind == "output" and not (before and before.is_run)
        ]
    assert wrong == []


PAGE = """
```python
number = 6
print(number, "orders")
```

```output
SEVEN orders
```

```console
$ echo one; echo two
one
...
$ false
```
"""


def test_page_run_names_line_command_expected_and_printed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:2: python\n--- expected\nSEVEN orders\n--- printed\n6 orders"):
        run_blocks("page.md", blocks_of(PAGE), World(), tmp_path)


@pytest.mark.process
def test_page_run_fails_for_a_command_that_fails_silently(tmp_path: Path) -> None:
    masks = World(masks=[(r"SEVEN|6", "NUMBER")])
    with pytest.raises(AssertionError, match=r"page\.md:15: false\n--- expected\n--- printed\n\(exit code 1\)"):
        run_blocks("page.md", blocks_of(PAGE), masks, tmp_path)


@pytest.mark.parametrize(
    ("expected", "printed", "is_so"),
    [
        ("a  b\n", "a b\n", True),
        ("a b\n", "a b\nc\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\n", True),
        ("a ... c\n", "a b c\n", True),
        ("a ...\n", "b\n", False),
        ("", "a\n", False),
    ],
)
def test_output_fits_with_ellipses_and_any_column_width(expected: str, printed: str, is_so: bool) -> None:
    assert fits(expected, printed) is is_so
