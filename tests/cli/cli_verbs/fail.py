"""A verb that raises what it is told to."""

from __future__ import annotations

from typing import Annotated

import typer

import formats.errors
import offloader.errors
from offloader.cli.options import Json


def run(
    name: Annotated[str, typer.Argument(help="The error's class.")],
    text: Annotated[str, typer.Option("--text")] = "stream a/b: segment 7\nis gone",
    hint: Annotated[str, typer.Option("--hint")] = "",
    count: Annotated[int, typer.Option("--count", min=1)] = 1,
    json: Json = False,
) -> None:
    """Raise an error."""
    if hasattr(offloader.errors, name):
        raise getattr(offloader.errors, name)(text, hint=hint)
    if hasattr(formats.errors, name):
        raise getattr(formats.errors, name)(text, object_name="a/b", offset=count)
    if name == "ModuleNotFoundError":
        raise ModuleNotFoundError(f"No module named {text!r}", name=text)
    raise {"KeyError": KeyError, "EOFError": EOFError}[name](text)
