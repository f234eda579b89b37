"""The command ``offloader``: loads the called command, runs it and returns its exit code.

``offloader --help`` imports no command, and so neither Arrow nor an SDK.

A command is a function whose parameters are typer's options, or dataclasses of them (``offloader.cli.options``). It
returns ``None`` or an exit code and raises ``offloader.errors``. ``offloader.cli.tree`` names the function of each
command. This module handles ``--debug`` and ``--wide``, which every command has, and options in front of the command.
"""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Annotated, Any, get_type_hints

import typer
from typer.main import get_command

import offloader
from offloader.cli import NOTHING_PLANNED, all_columns
from offloader.cli.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, report
from offloader.cli.help import Group, Leaf, with_examples
from offloader.cli.tree import TREE, Tree
from offloader.errors import InvalidCallError, OffloaderError
from offloader.runtime import system as own_process

#: Commands whose own process has no memory budget for entries: they read from the store, or Spark's workers do, which
#: inherit the allocator's settings.
_WITHOUT_BUDGET = frozenset({"export iceberg", "export parquet", "inspect", "read", "spark", "verify"})
#: Common options with a value: in front of a command, the value may be equal to the name of another command.
WITH_VALUE = frozenset({"--config", "--endpoint-url", "--ledgers", "--region", "--store"})
_DEBUG = "--debug"
_WIDE = "--wide"
#: Options that print or install the script of a shell.
_COMPLETION = frozenset({"--install-completion", "--show-completion"})
#: Narrowest help.
_WIDTH_MIN = 50


def main(
    arguments: Sequence[str] | None = None,
    *,
    tree: Tree = TREE,
    package: str = "offloader.cli",
    on_loaded: Callable[[], object] = lambda: None,
) -> int:
    """Runs one command.

    Args:
        arguments: the arguments after the program's name; default: ``sys.argv``.
        tree: the commands.
        package: of the commands' modules.
        on_loaded: called after the import of the command's modules.

    Returns:
        The exit code: 0, an ``ErrorKind``'s value, 130 interrupted, 141 the output's reader disconnected.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    words = [word for word in options if word not in (_DEBUG, _WIDE)] + given[len(options) :]
    all_columns.set(_WIDE in options)
    words = _command_first(words, {name: command.actions for each in tree.values() for name, command in each.items()})
    name, action = [*(words or _words_to_complete()), "", ""][:2]
    own_process.set_up(has_budget=_WITHOUT_BUDGET.isdisjoint((name, f"{name} {action}")))
    if name == "serve":  # runs for weeks
        own_process.keep_heap_small()
    try:
        if switch := next((word for word in options if word.startswith((f"{_DEBUG}=", f"{_WIDE}="))), ""):
            flag = switch.partition("=")[0]
            raise InvalidCallError(f"option {flag!r} does not take a value", hint=f"give {flag} without a value")
        if not _COMPLETION.isdisjoint(options):
            from offloader.cli.completion import correct_zsh_script  # no other call needs it

            correct_zsh_script()
        command = program(name, action, tree, package)
        on_loaded()
        width = shutil.get_terminal_size().columns  # click's own limit is 80
        result = command.main(
            args=words or ["--help"],
            prog_name="offloader",
            standalone_mode=False,
            max_content_width=max(width, _WIDTH_MIN),
        )
        if result == EXIT_INTERRUPTED:  # typer's result
            raise KeyboardInterrupt
        code = result if isinstance(result, int) else 0
    except (Exception, KeyboardInterrupt) as error:
        code = report(error, sys.stderr, as_json="--json" in options, debug=_DEBUG in options)
    return _flushed(code)


def program(name: str = "", action: str = "", tree: Tree = TREE, package: str = "offloader.cli") -> Any:
    """All commands by name and help, as click's group; only the called one, or all actions of the called group, run.

    Args:
        name: the called command; empty: none.
        action: its called action; empty or unknown: none.
        tree: the commands.
        package: of the commands' modules.
    """
    app = typer.Typer(
        help="Streaming tiered storage for log brokers: move entries to an object store and read them back.",
        epilog="Every command takes --wide, which shows all columns of a table, and --debug, which shows the "
        "traceback of an error. Guides: docs/README.md. Errors: docs/reference/errors.md.",
        cls=Group,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_top)
    for panel, commands in tree.items():
        for each, command in commands.items():
            how: Any = {"name": each, "help": command.help, "rich_help_panel": panel}
            if each != name:
                app.command(**how)(_not_loaded)
            elif command.place:
                del how["help"]
                app.command(cls=Leaf, **how)(_command(_loaded(package, command.place)))
            else:
                actions = typer.Typer(no_args_is_help=True, cls=Group)
                wanted = {action} & set(command.actions) or set(command.actions)
                for one, place in command.actions.items():
                    run = _command(_loaded(package, place)) if one in wanted else _not_loaded
                    actions.command(one, cls=Leaf)(run)
                app.add_typer(actions, **how)
    made = get_command(app)
    _prepare(made)
    return made


def _loaded(package: str, place: str) -> Callable[..., Any]:
    module, _, function = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"{package}.{module}"), function)
    return found


def _prepare(command: Any) -> None:
    """Names values in the help, and bypasses typer's conversion: it loads pydantic, a quarter of a listing's time."""
    for each in getattr(command, "commands", {}).values():
        _prepare(each)
    for parameter in (*command.params, command.get_help_option(typer.Context(command))):
        parameter.process_value = partial(_value_of, parameter, parameter.process_value)
        if parameter.metavar is None and not getattr(parameter, "is_flag", False):
            parameter.metavar = _metavar(parameter)


def _metavar(parameter: Any) -> str | None:
    """The name of a value in a help: ``STREAM``, ``N``; None: its choices."""
    if parameter.type_descriptor.choices:
        return None
    is_number = parameter.type_descriptor.annotation in (int, float)
    return "N" if is_number else str(parameter.name).upper().removesuffix("S" if parameter.nargs == -1 else "")


def _value_of(parameter: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value of an option or argument; ``convert`` is typer's own conversion, for all but the plain cases.

    Plain cases: a text for a text option, a default of the option's own type, no value, and texts for the command's
    own parser.
    """
    described = getattr(parameter, "type_descriptor", None)
    if described is None:
        return convert(context, value)
    parse, is_list = described.parameter_info.parser, parameter.multiple or parameter.nargs != 1
    if parse is not None and value not in (None, (), []):
        try:
            value = [parse(each) for each in value] if is_list else parse(value)
        except OffloaderError:  # a ``ValueError`` too, but it has its own words
            raise
        except (ValueError, AssertionError):
            return convert(context, value)  # typer words the error
    elif is_list or (parameter.required if value is None else type(value) is not described.annotation):
        return convert(context, value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def _words_to_complete() -> list[str]:
    """The words typed so far, which a shell passes in a variable when it asks for completions; else none."""
    if "_OFFLOADER_COMPLETE" not in os.environ:
        return []
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return typed.split()[1:]


def _command_first(words: list[str], commands: Mapping[str, Collection[str]]) -> list[str]:
    """``words`` with the command and its action in front: the user may put options before each of them."""
    name = _first_of(words, commands)
    if name is None:
        return words
    rest = [*words[:name], *words[name + 1 :]]
    action = _first_of(rest, commands[words[name]])
    moved = [] if action is None else [rest.pop(action)]
    return [words[name], *moved, *rest]


def _first_of(words: list[str], names: Collection[str]) -> int | None:
    """Number of the first word that is one of ``names`` and no value of a common option; None if another word is in its
    place, or none."""
    if not words or not words[0].startswith("-"):
        return 0 if words and words[0] in names else None
    return next((at for at, word in enumerate(words) if word in names and words[at - 1] not in WITH_VALUE), None)


def _print_version(given: bool) -> None:
    if given:
        print(f"offloader {offloader.__version__}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)]


def _top(version: _Version = False) -> None:
    """Options of the program itself; the callback of ``--version`` has run by now."""


def _not_loaded() -> None:
    raise AssertionError("only the called command is loaded")


def _command(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` for typer: replaces dataclass parameters by their fields."""
    signature = inspect.signature(run, eval_str=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        if isinstance(each.annotation, type) and is_dataclass(each.annotation):
            groups[each.name] = each.annotation
            # Resolve each annotation in the module that defines it: groups extend those of other modules.
            kinds = get_type_hints(each.annotation, include_extras=True)
            parameters += [
                one.replace(annotation=kinds[one.name])
                for one in inspect.signature(each.annotation).parameters.values()
            ]
        else:
            parameters.append(each)

    def command(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(**{option: given.pop(option) for option in inspect.signature(group).parameters})
        # typer turns a broken pipe into exit code 1 after the command; shells expect 141
        try:
            code = run(**given)
            if given.get("apply", True) or code:
                return 0 if code == NOTHING_PLANNED else code
            return _offered(run, given)
        except BrokenPipeError as cause:
            raise typer.Exit(EXIT_BROKEN_PIPE) from cause

    command.__doc__ = with_examples(run.__doc__ or "")
    # Keyword-only, so that order doesn't matter: options may precede a stream's name, which has no default.
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _offered(run: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Carries out the printed plan of a command that has no undo, if a person at a terminal agrees."""
    if given["json"]:
        return 0
    if sys.stdin.isatty() and sys.stdout.isatty() and typer.confirm("Carry out this plan?", err=True):
        return run(**{**given, "apply": True})
    print("nothing was changed; repeat the command with --apply to carry out this plan", file=sys.stderr)
    return 0


def _flushed(code: int) -> int:
    """Flushes standard output; a disconnected reader is not an error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # else the interpreter reports the same pipe when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or EXIT_BROKEN_PIPE
    return code


if __name__ == "__main__":
    sys.exit(main())
