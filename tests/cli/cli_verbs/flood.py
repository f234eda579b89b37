"""A verb that prints until its reader goes away."""

import itertools


def run() -> None:
    """Print for ever."""
    for number in itertools.count():
        print(number)
