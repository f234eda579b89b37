"""The command line: ``main`` loads the called command; the other modules are commands or shared output and options.

This package only formats terminal output. Library functions make all decisions, so that library users have them too.

Raises:
    UnsupportedError: the packages of the extra ``cli`` aren't installed.
"""

from __future__ import annotations

from contextvars import ContextVar

from offloader.errors import needs_extra

with needs_extra("cli", "the command line"):
    import typer  # noqa: F401

#: Whether tables show all columns, however wide they are (``--wide``).
all_columns: ContextVar[bool] = ContextVar("all_columns", default=False)
#: Result of a command with ``--apply`` that found nothing to do: there is no plan to carry out. The exit code is 0.
NOTHING_PLANNED = -1
