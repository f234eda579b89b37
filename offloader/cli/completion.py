"""Shell completion: corrects the script that typer installs for zsh.

zsh loads the script at the first completion. The script of typer then only registers its function, so that the first
TAB of a session completes nothing. The corrected script also calls the function.
"""

from __future__ import annotations

from contextlib import suppress

_REGISTERS = "\ncompdef %(complete_func)s %(prog_name)s\n"
_CALLS = """
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  %(complete_func)s "$@"
fi
"""


def correct_zsh_script() -> None:
    """Corrects the script before typer prints or installs it. Leaves a script of another form unchanged."""
    with suppress(ImportError, AttributeError, KeyError):
        from typer import _completion_shared

        scripts = _completion_shared._completion_scripts  # noqa: SLF001 - typer has no public name
        if _CALLS not in scripts["zsh"]:
            scripts["zsh"] = scripts["zsh"].replace(_REGISTERS, _REGISTERS + _CALLS)
