"""The command ``offloader``: loads the verb, runs it, returns its exit code.

``offloader --help`` imports no verb, and so neither Arrow nor an SDK.

A verb is a function whose parameters are typer's options, or dataclasses of them (``offloader.cli.options``). It
returns ``None`` or an exit code and raises ``offloader.errors``. A verb with several actions, each with its own
options, is a mapping instead: action -> such a function. This module handles ``--debug`` and ``--wide``, which every
verb has.
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

#: Verb -> its line in ``offloader --help``, in the order of the help.
VERBS = {
    "demo": "Run the whole path once on real data.",
    "ls": "List the streams of a store.",
    "offload": "Bring what a stream's ledgers hold into the store.",
    "pause": "Stop offloading a stream until it is resumed.",
    "resume": "Let a paused stream go on.",
    "segments": "List a stream's segments.",
    "adopt": "Take over what a Pulsar offloaded, where it is.",
    "manifest": "Show, rebuild or checkpoint a stream's manifest.",
    "read": "Print a stream's entries.",
    "replay": "Send a stream's messages to a Pulsar topic.",
    "export": "Add streams to an Iceberg table.",
    "verify": "Check a stream's objects against its manifest.",
    "inspect": "Show one object, header by header.",
    "accept-source": "Go on with another ledger database.",
    "accept-loss": "Go on without entries that a ledger database has lost.",
    "truncate": "Let a stream begin later.",
    "retention": "Decide what may be deleted, and say why.",
    "subscribers": "List who still needs a stream; add, acknowledge, remove.",
    "group": "Read streams with groups of readers.",
    "cleanup": "Delete what no stream needs any more.",
    "delete-stream": "Delete whole streams.",
    "rollback": "Make ledgers readable for a reader that knows V1 only.",
    "compact": "Merge a stream's small segments into larger ones.",
    "config": "Explain or check settings.",
    "status": "Show what the streams are doing.",
    "doctor": "Find out what keeps streams from being offloaded.",
    "serve": "Offload streams unattended, beside a broker.",
    "spark": "Run jobs over many streams with Spark.",
}

#: Verb -> its module, and there its function or its actions; of others the function ``run`` of the module named so.
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
#: Verbs whose own process holds no entries up to a budget: they read from the store, or Spark's workers do, which
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
        arguments: without the program's name; default: ``sys.argv``.
        verbs: verb -> its line in the help.
        package: of the verbs' modules.
        on_loaded: called when the verb's modules are imported.

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
            raise InvalidCall(f"option {name!r} does not take a value", hint=f"say {name} alone, or leave it out")
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
    """All verbs by name and help; the called one with its function."""
    app = typer.Typer(
        help="Streaming tiered storage for log brokers: entries into an object store, and back.",
        epilog="Every verb takes --wide, which shows all columns of a table, and --debug, which shows the traceback of "
        "an error.",
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
    """Lets typer convert only what has to be: it loads pydantic for that, a quarter of what a listing takes."""
    for each in getattr(command, "commands", {}).values():
        _keep_plain_values(each)
    for parameter in (*command.params, command.get_help_option(typer.Context(command))):
        parameter.process_value = partial(_value_of, parameter, parameter.process_value)


def _value_of(parameter: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value of an option or argument; ``convert`` is typer's own way, for all but the plain cases.

    Plain are a text for a text, a default of the option's own type, none at all, and a text for the verb's own parser.
    """
    described = getattr(parameter, "type_descriptor", None)
    if described is None or parameter.multiple or parameter.nargs != 1 or (value is None and parameter.required):
        return convert(context, value)
    parse = described.parameter_info.parser
    if parse is not None and value is not None:
        try:
            value = parse(value)
        except (ValueError, AssertionError):
            return convert(context, value)  # typer has the words for it
    elif value is not None and type(value) is not described.annotation:
        return convert(context, value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def _action_first(words: list[str], verb: str, actions: Collection[str]) -> list[str]:
    """``words`` with the verb's action directly after the verb: options may precede it, as they may any argument."""
    start = words.index(verb) + 1 if actions else len(words)
    if not words[start : start + 1] or not words[start].startswith("-"):
        return words
    found = next((number for number in range(start, len(words)) if words[number] in actions), start)
    return [*words[:start], words[found], *words[start:found], *words[found + 1 :]]


def place_of(verb: str) -> tuple[str, str]:
    """The module of a verb, and the name of its function or its actions there."""
    return _PLACES.get(verb, (verb, "run"))


def _print_version(given: bool) -> None:
    if given:
        print(f"offloader {offloader.__version__}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)]


def _top(version: _Version = False) -> None:
    """Options of the program itself; the callback of ``--version`` has run by now."""


def _not_loaded() -> None:
    raise AssertionError("only the verb that is called is loaded")


def _command(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` for typer: replaces dataclass parameters by their fields."""
    signature = inspect.signature(run, eval_str=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        if isinstance(each.annotation, type) and is_dataclass(each.annotation):
            groups[each.name] = each.annotation
            # Each field's annotation in the terms of the module that wrote it: groups extend those of other modules.
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
        # typer turns a broken pipe into exit code 1 after the command; 141 is what shells expect
        try:
            return run(**given)
        except BrokenPipeError as cause:
            raise typer.Exit(EXIT_BROKEN_PIPE) from cause

    command.__doc__ = run.__doc__
    # Keyword-only, in any order: options may precede a stream's name, which has no default.
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _flushed(code: int) -> int:
    """Flushes standard output; a disconnected reader is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # else the interpreter reports the same pipe when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or EXIT_BROKEN_PIPE
    return code


if __name__ == "__main__":
    sys.exit(main())
