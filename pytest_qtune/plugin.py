"""Entry point ``qtune`` of pytest: options, markers, fixtures, and results on reports.

Standard library and pytest only; everything heavy is imported by the tests that use it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

from pytest_qtune import frames, junit, options, rerun, threads
from pytest_qtune.fixtures import MARKED_MARCH, qtune_stages
from pytest_qtune.session import QtuneSession

__all__ = ["qtune_stages"]

RESULTS = pytest.StashKey[list[Any]]()
MARKER = "qtune(march=...): settings of qtune for this test; they beat flags and ini"
SLOW_MARKER = "qtune_slow: a quantization test that takes long; deselect with -m 'not qtune_slow'"
_OPENMP = "OMP_NUM_THREADS"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare every option of the table."""
    options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options; set up the report on the process that prints."""
    config.addinivalue_line("markers", MARKER)
    config.addinivalue_line("markers", SLOW_MARKER)
    options.check_all(config)
    _limit_threads(config)
    if hasattr(config, "workerinput"):
        from pytest_qtune.worker import QtuneWorker

        config.pluginmanager.register(QtuneWorker(config), "qtune-worker")
        return
    if options.get(config, "cache_clear"):
        from pytest_qtune import cache

        cache.clear(config)
    config.pluginmanager.register(QtuneSession(config), "qtune-session")


def _limit_threads(config: pytest.Config) -> None:
    """Size the thread pool that torch makes at its import; it can't be made smaller later."""
    wanted = config.getoption("qtune") and threads.runs_tests(config)
    if wanted and "torch" not in sys.modules and _OPENMP not in os.environ:
        config.add_cleanup(_set_variable(_OPENMP, str(threads.per_process(config))))


def _set_variable(name: str, value: str) -> Callable[[], None]:
    """Set an environment variable; return what restores it."""
    before = os.environ.get(name)
    os.environ[name] = value

    def restore() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    return restore


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse wrong arguments of the marker before anything runs."""
    for item in items:
        for marker in item.iter_markers("qtune"):
            options.check_marker(item, marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Set a marked test's march for its fixtures and its body; keep the command to repeat it."""
    restore = _set_variable(rerun.VARIABLE, rerun.variable(item))
    try:
        return (yield from _marked(item))
    finally:
        restore()


def _marked(item: pytest.Item) -> Generator[None, Any, Any]:
    marker = next((m for m in item.iter_markers("qtune") if "march" in m.kwargs), None)
    if marker is None:
        return (yield)
    from qtune.march import march

    chosen = str(marker.kwargs["march"])
    item.config.stash[MARKED_MARCH] = chosen
    try:
        with march(chosen):
            return (yield)
    finally:
        del item.config.stash[MARKED_MARCH]


def _collect(item: pytest.Item) -> None:
    """Keep what the assertions of this phase found; what can't be reported fails the test."""
    record = sys.modules.get("qtune.testing.record")
    if record is not None:
        from pytest_qtune.plain import to_plain

        where = f"result of {item.nodeid}"
        found = [to_plain(result.to_dict(), where) for result in record.drain()]
        item.stash.setdefault(RESULTS, []).extend(found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Collect after the fixtures."""
    try:
        return (yield)
    finally:
        _collect(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Collect after the test's body."""
    try:
        return (yield)
    finally:
        _collect(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Collect after the fixtures' ends."""
    try:
        return (yield)
    finally:
        _collect(item)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Move what was collected onto the report and its JUnit properties; shorten the traceback."""
    frames.shorten(item.config, call.excinfo)
    report = yield
    results = item.stash.get(RESULTS, None)
    if results:
        report.qtune = list(results)
        results.clear()
        if options.get(item.config, "junit") == "testcase":
            item.user_properties += junit.properties(report.qtune)
            report.user_properties = list(item.user_properties)
    elif report.failed and qtune_stages.__name__ in getattr(item, "fixturenames", ()):
        report.qtune = []  # it failed before it could assert: the report names it
    return report
