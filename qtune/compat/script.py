"""Run a script or a module with the toolchain's names, as plain ``python`` would."""

from __future__ import annotations

import argparse
import atexit
import builtins
import io
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any
from zipfile import is_zipfile

from qtune.compat.install import CHOICES, install
from qtune.errors import ArgumentError

_MAIN = "__main__"
_CANNOT_OPEN, _FAILED, _INTERRUPTED = 2, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m qtune.compat``: run what the arguments say; return the exit status of a failure.

    Ends like plain python: ``SystemExit`` goes through, another exception is printed with the
    script's own frames and gives 1. The names stay until the process's very end, which the script's
    threads and exit handlers come before.
    """
    stack = ExitStack()
    atexit.register(stack.close)  # first registered, so last run
    execute = None
    try:
        execute = _ready(_read(argv), stack)
        execute()
    except SystemExit:
        raise
    except BaseException as error:
        if execute is None and isinstance(error, ArgumentError):  # ours, not one of the script's
            sys.stderr.write(f"{error}\n")
            return _CANNOT_OPEN
        shown = error.with_traceback(_of_the_script(error.__traceback__))
        if isinstance(error, ImportError) and shown.__traceback__ is None:  # runpy found no such
            sys.stderr.write(f"qtune.compat: {error}\n")
            return _FAILED
        sys.excepthook(type(shown), shown, shown.__traceback__)
        return _end(error)
    return 0


def run(argv: Sequence[str]) -> dict[str, Any]:
    """Run a script inside of this process and return its names, as ``runpy.run_path`` does.

    ``argv``: as behind ``python -m qtune.compat``, so ``["script.py", "--epochs", "1"]`` or
    ``["-m", "package.module"]``. The aliases, ``sys.argv``, ``sys.path`` and ``__main__`` are as
    before when it is over. What the script raises, ``SystemExit`` too, goes through.
    """
    with ExitStack() as stack:
        return _ready(_read(argv), stack)()


def _read(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m qtune.compat",
        usage="%(prog)s [-h] [--prefer {qtune,installed}] (SCRIPT | -m MODULE) [ARGS ...]",
        description="Run a script of the toolchain unchanged, on qtune.",
    )
    parser.add_argument(
        "--prefer",
        choices=CHOICES,
        help="who wins where the real toolchain is installed (default: qtune, with a log line)",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module and its ARGS")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="a file and its ARGS")
    args = parser.parse_args(argv)
    if args.script[:1] == ["--"]:
        del args.script[0]
    if not (args.module or args.script):
        parser.error("give a SCRIPT, or -m MODULE")
    return args


def _ready(args: argparse.Namespace, stack: ExitStack) -> Callable[[], dict[str, Any]]:
    """Prepare the process for the script; return the call that runs it."""
    if args.module:
        stack.enter_context(_process(args.module, str(Path.cwd()), args.prefer))
        return partial(runpy.run_module, args.module[0], run_name=_MAIN, alter_sys=True)
    path = Path(args.script[0]).absolute()
    if path.is_dir() or is_zipfile(path):
        stack.enter_context(_process(args.script, str(path), args.prefer))
        return partial(runpy.run_path, args.script[0], run_name=_MAIN)
    code = _code(path)
    stack.enter_context(_process(args.script, str(path.resolve().parent), args.prefer))
    names = vars(stack.enter_context(_main_module(path)))

    def execute() -> dict[str, Any]:
        exec(code, names)
        return names

    return execute


def _code(path: Path) -> CodeType:
    refuse_notebook(path)
    try:
        with io.open_code(str(path)) as file:
            source = file.read()
    except OSError as error:
        raise ArgumentError(f"qtune.compat: can't open file {str(path)!r}: {error}") from None
    return compile(source, str(path), "exec", dont_inherit=True)  # our own __future__ is not its


def refuse_notebook(path: Path) -> None:
    """``ArgumentError`` for a notebook: its text is JSON, and often Python by accident."""
    if path.suffix == ".ipynb":
        raise ArgumentError(
            f"qtune.compat: {path} is a notebook, not a script; make one of it with "
            f"jupyter nbconvert --to script {path.name}, or call qtune.compat.install() in a cell"
        )


@contextmanager
def _process(argv: Sequence[str], folder: str, prefer: str | None) -> Iterator[None]:
    """``sys.argv``, the first entry of ``sys.path`` and the names as the script expects them.

    The folder first: a package of the toolchain that lies there is an installed one.
    """
    before = sys.argv, list(sys.path)
    sys.argv = list(argv)
    if not sys.flags.safe_path:  # python -P
        sys.path.insert(0, folder)
    try:
        with install(prefer):
            yield
    finally:
        sys.argv, sys.path[:] = before


@contextmanager
def _main_module(path: Path) -> Iterator[ModuleType]:
    """The module that the script's code fills, found by pickle and by child processes."""
    module, before = ModuleType(_MAIN), sys.modules[_MAIN]
    module.__dict__.update(__file__=str(path), __builtins__=builtins, __spec__=None)
    sys.modules[_MAIN] = module
    try:
        yield module
    finally:
        sys.modules[_MAIN] = before


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
    """The frames behind those that started the script; none for an error in its syntax."""
    ours = (str(Path(__file__)), runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
        traceback = traceback.tb_next
    return traceback


def _end(error: BaseException) -> int:
    """The exit status; an interrupted process ends by the signal, as its shell expects."""
    if not isinstance(error, KeyboardInterrupt):
        return _FAILED
    sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return _INTERRUPTED
