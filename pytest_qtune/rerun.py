"""The command that runs one test again, with everything of this run that the result depends on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_qtune.options import OPTIONS

VARIABLE = "QTUNE_RERUN"
"""Read by ``qtune.testing.result``; as pytest does with ``PYTEST_CURRENT_TEST``."""

_NOT_REPEATED = frozenset({"html", "json", "cache_clear"})


def command(item: pytest.Item) -> str:
    """``pytest --qtune tests/test_net.py::test_head``, to be run in the folder of this run."""
    config = item.config
    words = ["pytest", "--qtune", *_qtune_flags(config), *_pytest_flags(config), node_id(item)]
    return shlex.join(words)


def node_id(item: pytest.Item) -> str:
    """The item's id as the command line takes it: relative to where pytest was called."""
    path, _, rest = _without_group(item.nodeid).partition("::")
    config = item.config
    absolute = config.rootpath / path
    if not absolute.exists():
        return _without_group(item.nodeid)
    relative = Path(os.path.relpath(absolute, config.invocation_params.dir)).as_posix()
    return f"{relative}::{rest}" if rest else relative


def _without_group(nodeid: str) -> str:
    """xdist's loadgroup appends ``@group`` behind the parameters."""
    head, bracket, tail = nodeid.rpartition("]")
    if bracket:
        return head + bracket
    path, colons, name = tail.rpartition("::")
    return path + colons + name.partition("@")[0]


def _qtune_flags(config: pytest.Config) -> Iterator[str]:
    for option in OPTIONS:
        value = option.given(config)
        if option.name not in _NOT_REPEATED and value is not None:
            yield f"{option.flag_name}={value}"


def _pytest_flags(config: pytest.Config) -> Iterator[str]:
    """Options of pytest itself that decide what the test sees."""
    option = config.option
    if option.inifilename:
        yield f"--config-file={option.inifilename}"
    if option.rootdir:
        yield f"--rootdir={option.rootdir}"
    for setting in option.override_ini or ():
        yield f"--override-ini={setting}"
    if option.importmode != "prepend":
        yield f"--import-mode={option.importmode}"
    for plugin in option.plugins or ():
        if plugin != "no:terminal":  # xdist's own, in its workers
            yield from ("-p", plugin)
