"""The command line: ``main`` loads the verb; every other module is a verb or shared output and options.

Only terminal output: library users need no decision made here.

Raises:
    Unsupported: the packages of the extra ``cli`` aren't installed.
"""

from __future__ import annotations

from contextvars import ContextVar

from offloader.errors import needs_extra

with needs_extra("cli", "the command line"):
    import typer  # noqa: F401

#: Whether tables show all columns, however wide they are (``--wide``).
all_columns: ContextVar[bool] = ContextVar("all_columns", default=False)
