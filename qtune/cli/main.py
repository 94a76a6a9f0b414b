"""``main``: reads the command line, runs one command, writes its result, says how it went.

Standard output gets the result and nothing else, whatever models and data print; progress, logs
and errors go to standard error. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from qtune.cli.commands import COMMANDS, Command
from qtune.cli.outcome import INTERRUPTED, WRONG_INPUT, InputError, Outcome, plain
from qtune.cli.results import result_file
from qtune.cli.usage import Parser, UsageError
from qtune.report.files import check_folder, write_text
from qtune.testing.failure import one_line
from qtune.version import __version__

_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}
_PROGRESS = "QTUNE_PROGRESS"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``qtune`` with the arguments ``argv`` (default: the process's); return its exit status.

    0: all well. 1: a gate failed. 2: wrong usage or input. 130: interrupted.
    """
    try:
        args = parser().read(argv)
    except UsageError as error:
        return _misused(error, sys.argv[1:] if argv is None else argv)
    except SystemExit as error:  # --help and --version
        return int(error.code or 0)
    command: Command = args.command
    stdout = sys.stdout
    with _surroundings(args), redirect_stdout(sys.stderr):
        status, text = _run(command, args)
    if text:
        _write(stdout, text)
    return status


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="qtune",
        description="Check, compare and tune the quantization of a PyTorch model.",
        epilog="Exit status: 0 all well, 1 a gate failed, 2 wrong usage or input, 130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"qtune {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name,
            help=command.help,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(command=command)
    return top


def _run(command: Command, args: argparse.Namespace) -> tuple[int, str]:
    """Exit status and what goes to standard output."""
    try:
        outcome = _outcome(command, args)
    except KeyboardInterrupt:
        return INTERRUPTED, _failed(command, args, INTERRUPTED, "interrupted", "KeyboardInterrupt")
    except Exception as error:  # the user's model and data may raise anything
        if args.traceback or args.verbose:
            traceback.print_exc()
        message = one_line(error)
        return WRONG_INPUT, _failed(command, args, WRONG_INPUT, message, type(error).__name__)
    text = _json(command.name, outcome.to_dict())
    return outcome.status, text if args.json else str(outcome)


def _outcome(command: Command, args: argparse.Namespace) -> Outcome:
    """What the command found; it also lies in its folder, for ``report``."""
    run: Callable[[argparse.Namespace], Outcome] = importlib.import_module(command.module).run
    folder = getattr(args, "out_dir", None)
    if folder is not None:
        check_folder(folder, "--out-dir", InputError)
    outcome = run(args)
    if folder is None:
        return outcome
    path = result_file(Path(folder), command.name)
    outcome = replace(outcome, files=[*outcome.files, path])
    write_text(path, _json(command.name, outcome.to_dict()) + "\n")
    return outcome


def _misused(error: UsageError, argv: Sequence[str]) -> int:
    sys.stderr.write(f"{error.line}\n")
    if "--json" in argv:
        _write(sys.stdout, _json(error.command, _error(WRONG_INPUT, error.message, "UsageError")))
    return WRONG_INPUT


def _failed(
    command: Command, args: argparse.Namespace, status: int, message: str, kind: str
) -> str:
    sys.stderr.write(f"qtune {command.name}: {message}\n")
    if not args.json:
        return ""
    return _json(command.name, _error(status, message, kind))


def _error(status: int, message: str, kind: str) -> dict[str, Any]:
    return {"ok": False, "exit_status": status, "error": {"type": kind, "message": message}}


def _json(command: str, content: dict[str, Any]) -> str:
    head = {"command": command, "qtune": __version__}
    return json.dumps(plain(head | content), indent=1, allow_nan=False)


def _write(stdout: TextIO, text: str) -> None:
    try:
        stdout.write(f"{text}\n")
        stdout.flush()
    except BrokenPipeError:  # who reads has read enough, as ``head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


@contextmanager
def _surroundings(args: argparse.Namespace) -> Iterator[None]:
    """Logs on standard error, progress bars as asked for; all of it is taken back."""
    level = _LEVELS[-1 if args.quiet else min(args.verbose, 1)]
    log = logging.getLogger("qtune")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before, progress = log.level, os.environ.get(_PROGRESS)
    log.addHandler(handler)
    log.setLevel(level)
    if args.quiet:
        os.environ[_PROGRESS] = "off"
    path = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))  # module:factory may lie beside the user
    try:
        yield
    finally:
        sys.path[:] = path
        log.removeHandler(handler)
        log.setLevel(before)
        if args.quiet:
            _restore(_PROGRESS, progress)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
