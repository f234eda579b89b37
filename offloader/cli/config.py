"""``offloader config explain TOPIC | check | sample``: effective settings, their sources, and all settings.

Changes no setting.
"""

from __future__ import annotations

from typing import Annotated

import typer

from offloader.cli.options import Config, Json
from offloader.cli.output import Column, json_line, print_rows
from offloader.errors import InvalidCall
from offloader.settings.layered import SettingsFile, read_settings_file
from offloader.settings.sample import sample_settings

__all__ = ["run"]


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else '""'


_COLUMNS = [Column("name", "SETTING"), Column("value", "VALUE", _value), Column("source", "FROM")]


def run(
    action: Annotated[str, typer.Argument(help="explain, check or sample.", show_default=False)],
    topic: Annotated[str, typer.Argument(help="explain: the stream's name.", show_default="the process")] = "",
    config: Config = "",
    changed: Annotated[bool, typer.Option("--changed", help="explain: only what differs from the defaults.")] = False,
    json: Json = False,
) -> None:
    """Explain each effective setting of a stream and where it comes from, check a settings file, or print a sample.

    Layers: process, then namespace, then topic; the last one that names a setting counts. A file with unknown,
    ineffective or contradictory settings is refused (exit code 2), all of them named. The sample has every setting with
    its default and what it means.
    """
    if action not in ("explain", "check", "sample"):
        raise InvalidCall(f"config {action}: no such action", hint="explain TOPIC, check or sample")
    if action == "sample":
        if config or topic or changed:
            raise InvalidCall("sample takes nothing else", hint="offloader config sample > offloader.toml")
        text = sample_settings()
        print(json_line({"sample": text}) if json else text, end="\n" if json else "")
        return
    if action == "check" and (not config or topic):
        raise InvalidCall("check takes a settings file and nothing else", hint="give --config FILE")
    found = read_settings_file(config) if config else SettingsFile()
    found.settings_of(topic)
    if action == "check":
        count = sum(map(len, found.layers.values()))
        print(json_line({"file": config, "settings": count}) if json else f"{config}: {count} settings, all in effect")
        return
    rows = [
        {"name": each.name, "value": each.value, "source": each.source}
        for each in sorted(found.values_of(topic).values(), key=lambda each: ("." in each.name, each.name))
        if not changed or each.source != "default"
    ]
    print_rows(rows, _COLUMNS, as_json=json, empty="every setting has its default")
