"""``qtune_<command>.json``: what each command found, kept beside its files for ``report``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtune.cli.commands import COMMANDS
from qtune.cli.outcome import InputError

_PATTERN = "qtune_*.json"


@dataclass(frozen=True, slots=True)
class Result:
    """The JSON object of one command."""

    command: str
    ok: bool
    content: Mapping[str, Any]

    def __bool__(self) -> bool:
        return self.ok


def result_file(folder: Path, command: str) -> Path:
    """Where a command's result lies."""
    return folder / _PATTERN.replace("*", command)


def read_results(folder: Path) -> dict[str, Result]:
    """The results in a folder and those below it, in the commands' order."""
    found = {}
    for path in sorted([*folder.glob(_PATTERN), *folder.glob(f"*/{_PATTERN}")]):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            result = Result(str(content["command"]), bool(content["ok"]), content)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: no result of a command of qtune") from error
        found[result.command] = result
    order = {command.name: place for place, command in enumerate(COMMANDS)}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))
