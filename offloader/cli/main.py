"""The command ``offloader``: loads the called command, runs it and returns its exit code.

``offloader --help`` imports no command, and so neither Arrow nor an SDK.

A command is a function whose parameters are typer's options, or dataclasses of them (``offloader.cli.options``). It
returns ``None`` or an exit code and raises ``offloader.errors``. A command with several actions, each with its own
options, is a mapping instead: action -> such a function. This module handles ``--debug`` and ``--wide``, which every
command has.
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
from offloader.cli import all_columns
from offloader.cli.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, report
from offloader.errors import InvalidCall
from offloader.runtime import system as own_process

#: Command -> its line in ``offloader --help``, in the order of the help.
VERBS = {
    "demo": "Offload and read back real data once.",
    "ls": "List the streams of a store.",
    "offload": "Offload a stream's ledgers to the object store.",
    "pause": "Stop offloading a stream until it is resumed.",
    "resume": "Resume offloading a paused stream.",
    "segments": "List a stream's segments.",
    "adopt": "Import ledgers that Pulsar offloaded, in place.",
    "manifest": "Show, rebuild or checkpoint a stream's manifest.",
    "read": "Print a stream's entries.",
    "replay": "Send a stream's messages to a Pulsar topic.",
    "export": "Add streams to an Iceberg table.",
    "verify": "Check a stream's objects against its manifest.",
    "inspect": "Show one object, header by header.",
    "accept-source": "Switch a stream to a different ledger database.",
    "accept-loss": "Accept the loss of entries missing in the ledger database.",
    "truncate": "Move a stream's start position forward.",
    "retention": "Plan, run and explain retention.",
    "subscribers": "List, add, acknowledge and remove subscribers of a stream.",
    "group": "Read streams with reader groups.",
    "cleanup": "Delete unreferenced segments and objects.",
    "delete-stream": "Delete whole streams.",
    "rollback": "Rewrite ledgers for readers that only support V1.",
    "compact": "Merge a stream's small segments into larger ones.",
    "config": "Explain, check or convert settings.",
    "status": "Show mode, lag and errors of the streams.",
    "doctor": "Check configuration, connectivity and stalled streams.",
    "serve": "Offload streams continuously as a service.",
    "spark": "Run jobs over many streams with Spark.",
}

#: Command -> its module, and its function or its actions there. Default: the function ``run`` of the module of the same
#: name.
_PLACES = {
    "accept-loss": ("offload", "accept_loss"),
    "accept-source": ("offload", "accept_source"),
    "adopt": ("pulsar", "adopt_ledgers"),
    "cleanup": ("cleanup", "ACTIONS"),
    "config": ("config", "ACTIONS"),
    "delete-stream": ("cleanup", "delete_stream"),
    "group": ("group", "ACTIONS"),
    "inspect": ("reading", "inspect"),
    "ls": ("listing", "list_stored"),
    "manifest": ("manifest", "ACTIONS"),
    "offload": ("offload", "offload"),
    "pause": ("offload", "pause"),
    "read": ("reading", "read"),
    "replay": ("pulsar", "replay"),
    "resume": ("offload", "resume"),
    "retention": ("retention", "RETENTION"),
    "rollback": ("rollback", "ACTIONS"),
    "segments": ("reading", "segments"),
    "subscribers": ("retention", "SUBSCRIBERS"),
    "truncate": ("retention", "truncate"),
    "verify": ("reading", "verify"),
}
#: Commands whose own process has no memory budget for entries: they read from the store, or Spark's workers do, which
#: inherit the allocator's settings.
_WITHOUT_BUDGET = frozenset({"export", "inspect", "read", "spark", "verify"})
_DEBUG = "--debug"
_WIDE = "--wide"
#: Narrowest help.
_WIDTH_MIN = 50


def main(
    arguments: Sequence[str] | None = None,
    *,
    verbs: Mapping[str, str] = VERBS,
    package: str = "offloader.cli",
    on_loaded: Callable[[], object] = lambda: None,
) -> int:
    """Runs one command.

    Args:
        arguments: the arguments after the program's name; default: ``sys.argv``.
        verbs: command -> its line in the help.
        package: of the commands' modules.
        on_loaded: called after the import of the command's modules.

    Returns:
        The exit code: 0, an ``ErrorKind``'s value, 130 interrupted, 141 the output's reader disconnected.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    words = [word for word in options if word not in (_DEBUG, _WIDE)] + given[len(options) :]
    all_columns.set(_WIDE in options)
    verb = next((word for word in words if not word.startswith("-")), "")
    own_process.set_up(has_budget=verb not in _WITHOUT_BUDGET)
    if verb == "serve":  # runs for weeks
        own_process.keep_heap_small()
    try:
        if switch := next((word for word in options if word.startswith((f"{_DEBUG}=", f"{_WIDE}="))), ""):
            name = switch.partition("=")[0]
            raise InvalidCall(f"option {name!r} does not take a value", hint=f"give {name} without a value")
        command: Any = get_command(_app(verb, verbs, package))
        _keep_plain_values(command)
        actions = getattr(command.commands.get(verb), "commands", ())
        arguments = _action_first(words, verb, actions) or ["--help"]
        on_loaded()
        width = shutil.get_terminal_size().columns  # click's own limit is 80
        result = command.main(
            args=arguments, prog_name="offloader", standalone_mode=False, max_content_width=max(width, _WIDTH_MIN)
        )
        if result == EXIT_INTERRUPTED:  # typer's result
            raise KeyboardInterrupt
        code = result if isinstance(result, int) else 0
    except (Exception, KeyboardInterrupt) as error:
        code = report(error, sys.stderr, as_json="--json" in options, debug=_DEBUG in options)
    return _flushed(code)


def _app(verb: str, verbs: Mapping[str, str], package: str) -> typer.Typer:
    """All commands by name and help; the called one with its function."""
    app = typer.Typer(
        help="Streaming tiered storage for log brokers: move entries to an object store and read them back.",
        epilog="Every command takes --wide, which shows all columns of a table, and --debug, which shows the "
        "traceback of an error.",
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_top)
    for name, text in verbs.items():
        if name == verb:
            module, attribute = place_of(name)
            found = getattr(importlib.import_module(f"{package}.{module}"), attribute)
            if isinstance(found, Mapping):
                actions = typer.Typer(help=text, no_args_is_help=True)
                for action, run in found.items():
                    actions.command(action)(_command(run))
                app.add_typer(actions, name=name)
            else:
                app.command(name)(_command(found))
        else:
            app.command(name, help=text)(_not_loaded)
    return app


def _keep_plain_values(command: Any) -> None:
    """Bypasses typer's conversion where possible: it loads pydantic, a quarter of the time of a listing."""
    for each in getattr(command, "commands", {}).values():
        _keep_plain_values(each)
    for parameter in (*command.params, command.get_help_option(typer.Context(command))):
        parameter.process_value = partial(_value_of, parameter, parameter.process_value)


def _value_of(parameter: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value of an option or argument; ``convert`` is typer's own conversion, for all but the plain cases.

    Plain cases: a text for a text option, a default of the option's own type, no value, and a text for the command's
    own parser.
    """
    described = getattr(parameter, "type_descriptor", None)
    if described is None or parameter.multiple or parameter.nargs != 1 or (value is None and parameter.required):
        return convert(context, value)
    parse = described.parameter_info.parser
    if parse is not None and value is not None:
        try:
            value = parse(value)
        except (ValueError, AssertionError):
            return convert(context, value)  # typer words the error
    elif value is not None and type(value) is not described.annotation:
        return convert(context, value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def _action_first(words: list[str], verb: str, actions: Collection[str]) -> list[str]:
    """``words`` with the action moved directly after the command: the user may put options before it."""
    start = words.index(verb) + 1 if actions else len(words)
    if not words[start : start + 1] or not words[start].startswith("-"):
        return words
    found = next((number for number in range(start, len(words)) if words[number] in actions), start)
    return [*words[:start], words[found], *words[start:found], *words[found + 1 :]]


def place_of(verb: str) -> tuple[str, str]:
    """The module of a command, and the name of its function or its actions there."""
    return _PLACES.get(verb, (verb, "run"))


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
            return run(**given)
        except BrokenPipeError as cause:
            raise typer.Exit(EXIT_BROKEN_PIPE) from cause

    command.__doc__ = run.__doc__
    # Keyword-only, so that order doesn't matter: options may precede a stream's name, which has no default.
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


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
