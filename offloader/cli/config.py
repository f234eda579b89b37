"""``offloader config explain TOPIC | check | sample``: shows and checks settings."""

from __future__ import annotations

from typing import Annotated

import typer

from offloader.cli.options import Config, Json, name_argument
from offloader.cli.output import Column, print_result, print_rows
from offloader.errors import InvalidCallError
from offloader.settings.layered import SettingsFile, read_settings_file, sample_settings


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else '""'


_COLUMNS = [
    Column("name", "SETTING"),
    Column("value", "VALUE", _value, wraps=True),
    Column("source", "FROM", wraps=True),
]


def explain(
    topic: Annotated[str, name_argument("The stream's name.", shown="the process")] = "",
    config: Config = "",
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that differ from the defaults.")] = False,
    json: Json = False,
) -> None:
    """Show the effective settings of a stream and where each value comes from.

    The layers are process, namespace and topic; the last layer that sets a value wins.

    Examples:
        offloader config explain --config offloader.toml
        offloader config explain orders --config offloader.toml
    """
    found = read_settings_file(config) if config else SettingsFile()
    found.settings_of(topic)
    rows = [
        each.as_json()
        for each in sorted(found.values_of(topic).values(), key=lambda each: each.name)
        if not changed or each.source != "default"
    ]
    print_rows(rows, _COLUMNS, as_json=json, empty="all settings have their defaults")


def check(config: Config = "", json: Json = False) -> None:
    """Check a settings file.

    Rejects a file with unknown, ineffective or contradictory settings, or with names or addresses that `serve` rejects
    (exit code 2), and lists all of them. `offloader serve --check` also checks this machine's tokens, certificates and
    packages.

    Examples:
        offloader config check --config offloader.toml
    """
    if not config:
        raise InvalidCallError("no settings file was given", hint="give --config FILE")
    # Imported late: the other actions don't need the service.
    from offloader.service.bootstrap import require_valid

    found = read_settings_file(config)
    require_valid(found.settings_of(""))
    count = sum(map(len, found.layers.values()))
    print_result({"file": config, "settings": count}, f"{config}: {count} settings, all in effect", as_json=json)


def sample(json: Json = False) -> None:
    """Print a sample settings file.

    It lists every setting with its default and its description.

    Examples:
        offloader config sample
    """
    text = sample_settings()
    print_result({"sample": text}, text.removesuffix("\n"), as_json=json)
