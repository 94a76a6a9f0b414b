"""``hmct-debugger``, also ``qtune-onnx-debugger``: the debugger's functions on a command line.

Nothing heavy is imported before a subcommand runs.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from qtune.errors import QtuneError
from qtune.onnx_debug.command_lists import join_lists
from qtune.onnx_debug.command_options import REQUIRED, SUBCOMMANDS, Subcommand
from qtune.report.screen import show
from qtune.version import __version__

DONE, FAILED, INTERRUPTED = 0, 1, 130
TABLES = "qtune.onnx_debug.sensitivity"
"""The logger of the tables that ``-v`` asks for."""
_PROG = "hmct-debugger"
_ANSWERS = ("true", "false", "yes", "no", "on", "off", "none", "0", "1")
"""What somebody may type as the value of a switch; those that are none get an error."""
_EPILOG = """\
Lists are written [a,b] or ['a','b'], nested ones [[a,b],[c]]. Put quotes around a list where the
names hold characters of the shell: "[a;1,b]".

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the arguments ``argv`` (default: the process's); return its exit status.

    0: done. 1: failed, with one line that says why on standard error. 2: wrong usage. 130:
    interrupted. Tables and the names of written files go to standard output, all else to standard
    error.
    """
    if argv is None:
        _escape_unencodable()
    try:
        args = read(sys.argv[1:] if argv is None else argv)
    except SystemExit as error:  # --help, --version and wrong usage, which argparse has told
        return int(error.code or 0)
    command: Subcommand = args.command
    with _messages():
        try:
            _tell(command, args, call(command, args))
        except KeyboardInterrupt:
            return _failed(command, "interrupted", INTERRUPTED)
        except (QtuneError, OSError, NotImplementedError) as error:
            return _failed(command, " ".join(str(error).split()), FAILED)
    return DONE


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments by the functions' parameters, and ``command``; ``SystemExit`` if misused."""
    args, rest = parser().parse_known_args(_with_values(join_lists(argv)))
    if rest:
        args.misused(_unknown(rest[0], args.command))
    del args.misused
    return args


def _unknown(word: str, command: Subcommand) -> str:
    if word.startswith("-"):
        flags = [f for option in command.options for f in option.flags if "_" not in f]
        near = get_close_matches(word.partition("=")[0], flags, n=1)
        return f"unrecognized arguments: {word}" + (f"; did you mean {near[0]}?" if near else "")
    hint = 'if it is of a list, quote the list, "[a,b]": brackets are a pattern of the shell'
    return f"unrecognized arguments: {word}; {hint}"


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog=_PROG,
        description="Find the nodes of a calibrated ONNX model that cost its accuracy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"{_PROG} {__version__}")
    subparsers = top.add_subparsers(title="subcommands", metavar="SUBCOMMAND", required=True)
    for command in SUBCOMMANDS:
        sub = subparsers.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_arguments(sub, command)
        sub.set_defaults(command=command, misused=sub.error)
    return top


def add_arguments(sub: argparse.ArgumentParser, command: Subcommand) -> None:
    """The arguments of ``command``."""
    sub.add_argument(
        "model_or_file",
        metavar="MODEL_OR_FILE",
        help="calibrated model (.onnx with HzCalibration nodes, or with QuantizeLinear and "
        "DequantizeLinear)",
    )
    sub.add_argument(
        command.data,
        metavar="CALIBRATION_DATA",
        help="folder with <input name>/<i>.npy",
    )
    for option in command.options:
        is_required = option.default is REQUIRED
        sub.add_argument(
            *option.flags,
            dest=option.name,
            type=option.read,
            default=None if is_required else option.default,
            required=is_required,
            metavar=option.metavar,
            help=option.help + ("" if is_required else f" (default: {option.default})"),
        )


def call(command: Subcommand, args: argparse.Namespace) -> Any:
    """What the function of ``command`` returns for the arguments."""
    function = getattr(importlib.import_module(command.module), command.function)
    given = {option.name: getattr(args, option.name) for option in command.options}
    given[command.data] = getattr(args, command.data)
    return function(model_or_file=args.model_or_file, **given)


def _with_values(words: Sequence[str]) -> list[str]:
    """``words`` in which a switch without a value has the value ``True``."""
    known = {command.name: command for command in SUBCOMMANDS}
    command = next((known[word] for word in words if word in known), None)
    if command is None:
        return list(words)
    switches = {flag for item in command.options if item.is_switch for flag in item.flags}
    found: list[str] = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        found.append(word)
        if word in switches and after.lower() not in _ANSWERS:
            found.append("True")
    return found


def _tell(command: Subcommand, args: argparse.Namespace, result: Any) -> None:
    """Which files were written; how to see the table, where nobody would see anything."""
    try:
        for path in written(result):
            show(f"wrote {path}")
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _stop_writing(error)
    if not getattr(args, "verbose", True) and args.save_dir is None:
        _say(f"{_PROG} {command.name}: done; -v True prints the table")


def written(result: Any) -> list[Path]:
    """The files that a result names: a list of them, ``files``, ``file`` or those of a series."""
    if isinstance(result, (list, tuple)):
        return [path for item in result for path in written(item)]
    if isinstance(result, Path):
        return [result]
    parts = (getattr(result, name, ()) for name in ("files", "file", "series"))
    return [path for part in parts if part for path in written(part)]


def _failed(command: Subcommand, message: str, status: int) -> int:
    _say(f"{_PROG} {command.name}: {message}")
    return status


def _escape_unencodable() -> None:
    """Names of nodes are in any script, a terminal or file may not be: ``\\u4e2d`` then."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say(line: str) -> None:
    if sys.stderr is not None:  # it may be closed
        sys.stderr.write(f"{line}\n")


def _stop_writing(error: OSError) -> None:
    """What is left for standard output goes nowhere.

    No error where the reader has read enough, as ``head`` does; else raises ``error``.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    if not isinstance(error, BrokenPipeError):
        raise error


class _Tables(logging.StreamHandler[Any]):
    """Writes to standard output. A table that can't be written is an error of the command."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            _stop_writing(error)
        else:
            super().handleError(record)


@contextmanager
def _messages() -> Iterator[None]:
    """Tables go to standard output, what the steps say to standard error; then all is as before."""
    log = logging.getLogger("qtune.onnx_debug")
    tables = _Tables(sys.stdout)
    tables.addFilter(_is_table)
    steps = logging.StreamHandler(sys.stderr)
    steps.addFilter(lambda record: not _is_table(record))
    before = log.level
    for handler in (tables, steps):
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in (tables, steps):
            log.removeHandler(handler)
        log.setLevel(before)


def _is_table(record: logging.LogRecord) -> bool:
    return record.name == TABLES and record.levelno == logging.INFO


if __name__ == "__main__":
    sys.exit(main())
