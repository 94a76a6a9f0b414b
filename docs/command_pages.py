"""The page of the command ``qtune``: every command with its arguments, from the parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from qtune.cli.commands import COMMANDS, Command

TITLE = """# Commands and their options

What `qtune COMMAND --help` says. [The command line](../cli.md) shows them at work.
"""


def parts() -> Iterator[str]:
    """The parts of the page: title, overview, a section for each command."""
    yield TITLE
    yield "\n".join(f"* [`qtune {c.name}`](#qtune-{c.name}): {c.help}" for c in COMMANDS)
    yield from map(_section, COMMANDS)


def _section(command: Command) -> str:
    parser = argparse.ArgumentParser(prog=f"qtune {command.name}", add_help=False)
    command.add_arguments(parser)
    groups = [group for group in parser._action_groups if group._group_actions]
    groups.sort(key=lambda group: group.title == "options")  # argparse's own, of what has no group
    tables = map(_group, groups)
    description = " ".join(command.description.split())
    return "\n\n".join([f"## qtune {command.name}", description, *tables])


def _group(group: argparse._ArgumentGroup) -> str:
    """The arguments of a group with what they take; positional ones first."""
    about = f", {group.description}" if group.description else ""
    head = ["| argument | meaning |", "| --- | --- |"]
    rows = [f"| {_name(action)} | {_help(action)} |" for action in group._group_actions]
    return "\n".join([f"**{group.title}**{about}", "", *head, *rows])


def _name(action: argparse.Action) -> str:
    value = _value(action)
    if not action.option_strings:
        return f"`{value}`"
    return f"`{', '.join(action.option_strings)}{' ' + value if value else ''}`"


def _value(action: argparse.Action) -> str:
    """How the value is written; empty for a switch."""
    if action.nargs == 0:
        return ""
    text = str(action.metavar or action.dest.upper())
    if action.choices is not None and action.metavar is None:
        text = "{" + ",".join(map(str, action.choices)) + "}"
    text = f"{text} [{text} ...]" if action.nargs == "+" else text
    return f"[{text}]" if action.nargs == "?" else text


def _help(action: argparse.Action) -> str:
    text = " ".join(((action.help or "") % vars(action)).split()).replace("|", "\\|")
    return re.sub(r"(?<![\w-])(--[a-z][\w-]*|\$[A-Z_]+)", r"`\1`", text)
