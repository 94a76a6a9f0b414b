"""Wrong usage in one line, with the option or command that was probably meant."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

from qtune.cli.outcome import WRONG_INPUT

_CHOICE = re.compile(r"argument COMMAND: invalid choice: '([^']*)'")


class UsageError(SystemExit):
    """The command line can't be read. ``command``: its name, or ``""``; ``message``: one line."""

    def __init__(self, prog: str, message: str) -> None:
        super().__init__(WRONG_INPUT)
        self.command = prog.partition(" ")[2]
        self.message = message
        self.line = f"{prog}: {message} (see {prog} --help)"


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors are ``UsageError`` and name what is near."""

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``; argparse prints all options before."""
        wrong = _CHOICE.match(message)
        if wrong is not None and self._subparsers is not None:
            message = f"no command {wrong[1]!r}{_near(wrong[1], self._commands())}"
        raise UsageError(self.prog, " ".join(message.removeprefix("argument ").split()))

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The arguments; ``UsageError`` in the name of the command for an unknown option."""
        args, rest = self.parse_known_args(argv)
        if rest:
            sub = self._commands()[args.command.name]
            sub.error(f"unknown {rest[0]!r}{_near(rest[0], sub._option_string_actions)}")
        return args

    def _commands(self) -> dict[str, argparse.ArgumentParser]:
        found = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return dict(found[0].choices)


def _near(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word.partition("=")[0], list(known), n=1)
    if near:
        return f"; did you mean {near[0]}?"
    commands = [name for name in known if not name.startswith("-")]
    return f"; choose from {', '.join(commands)}" if commands else ""
