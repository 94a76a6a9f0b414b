"""The command that runs one test again, with everything of this run that the result depends on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_qtune.options import OPTIONS

VARIABLE = "QTUNE_RERUN"
"""Read by ``qtune.testing.result``; as pytest does with ``PYTEST_CURRENT_TEST``."""

WORKERINPUT = "qtune_rerun"
FLAGS = pytest.StashKey[list[str]]()

_NOT_REPEATED = frozenset({"html", "json", "cache_clear", "update", "update_in_ci", "gates"})
_SHORT = ("-p", "-c", "-o", "-W")
_LONG = ("--config-file", "--rootdir", "--override-ini", "--import-mode", "--pythonwarnings")


def variable(item: pytest.Item) -> str:
    """The content of the variable: a run inside a test must not take it for its own."""
    return f"{item.nodeid}\t{command(item)}".replace("\x00", "(null)")


def command(item: pytest.Item) -> str:
    """``pytest --qtune tests/test_net.py::test_head``, to be run in the folder of this run."""
    return shlex.join(["pytest", "--qtune", *flags(item.config), node_id(item)])


def flags(config: pytest.Config) -> list[str]:
    """Options of this run that a single test depends on; a worker has them from the controller."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        return list(worker.get(WORKERINPUT, ()))
    if FLAGS not in config.stash:
        config.stash[FLAGS] = [*_of_qtune(config), *_of_pytest(config.invocation_params.args)]
    return config.stash[FLAGS]


def node_id(item: pytest.Item) -> str:
    """The item's id as the command line takes it: relative to where pytest was called."""
    whole = test_id(item)
    path, _, rest = whole.partition("::")
    absolute = item.config.rootpath / path
    if not absolute.exists():
        return whole
    relative = Path(os.path.relpath(absolute, item.config.invocation_params.dir)).as_posix()
    return f"{relative}::{rest}" if rest else relative


def test_id(item: pytest.Item) -> str:
    """The item's id in every mode of xdist: loadgroup appends ``@group`` to ``item.nodeid``."""
    plain = f"{item.parent.nodeid}::{item.name}" if item.parent else item.nodeid
    return plain if item.nodeid.startswith(plain + "@") else item.nodeid


def _of_qtune(config: pytest.Config) -> Iterator[str]:
    for option in OPTIONS:
        value = option.given(config)
        if option.name not in _NOT_REPEATED and value is not None:
            yield option.flag_name if option.kind == "switch" else f"{option.flag_name}={value}"


def _of_pytest(args: Sequence[str | os.PathLike[str]]) -> Iterator[str]:
    """What was given of the options that decide what a test sees, each with its value."""
    words = iter(map(str, args))
    for word in words:
        name, equals, _ = word.partition("=")
        if word in _SHORT or word in _LONG:
            yield from (word, next(words, ""))
        elif (equals and name in _LONG) or word[:2] in _SHORT:
            yield word
