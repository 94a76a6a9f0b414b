"""Entry point ``qtune`` of pytest: options, markers, fixtures, and results on reports.

Standard library and pytest only; everything heavy is imported by the tests that use it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_qtune import baselines, junit, options, rerun, threads
from pytest_qtune.baseline_run import BaselineRun
from pytest_qtune.baselines import qtune_baseline
from pytest_qtune.fixtures import MARKED_MARCH, qtune_onnx_stages, qtune_stages
from pytest_qtune.session import QtuneSession

__all__ = ["qtune_baseline", "qtune_onnx_stages", "qtune_stages"]

RESULTS = pytest.StashKey[list[Any]]()
ATTEMPT = pytest.StashKey[int]()
MARKER = "qtune(march=...): settings of qtune for this test; they beat flags and ini"
SLOW_MARKER = "qtune_slow: a quantization test that takes long; deselect with -m 'not qtune_slow'"
GATE_FILE = ".qtune.toml"
"""As in ``qtune.testing.gatefile``, which a run without such a file does not load."""
_OPENMP = "OMP_NUM_THREADS"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare every option of the table."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Serve the toolchain's names before a conftest can ask for them; end with the run."""
    if options.early(early_config, "compat"):
        from qtune.compat import install

        early_config.add_cleanup(install().close)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options; set up the report on the process that prints."""
    config.addinivalue_line("markers", MARKER)
    config.addinivalue_line("markers", SLOW_MARKER)
    options.check_all(config)
    baselines.check_update(config)
    _limit_threads(config)
    stored = baselines.QtuneBaselines(config)
    config.pluginmanager.register(stored, "qtune-baselines")
    if options.get(config, "fuzz") is not None:
        from pytest_qtune.fuzz import QtuneFuzz

        config.pluginmanager.register(QtuneFuzz(config), "qtune-fuzz")
    if hasattr(config, "workerinput"):
        from pytest_qtune.worker import QtuneWorker

        config.pluginmanager.register(QtuneWorker(config), "qtune-worker")
        return
    if options.get(config, "cache_clear"):
        from pytest_qtune import cache

        cache.clear(config)
    session = QtuneSession(config)
    config.pluginmanager.register(session, "qtune-session")
    config.pluginmanager.register(BaselineRun(config, session, stored), "qtune-baseline-run")
    if config.pluginmanager.hasplugin("html") and config.getoption("htmlpath", None):
        from pytest_qtune.html_extras import QtuneHtml

        config.pluginmanager.register(QtuneHtml(config), "qtune-html")
    if session.active and options.get(config, "gates"):
        from pytest_qtune.gates import QtuneGates

        config.pluginmanager.register(QtuneGates(config, session), "qtune-gates")


def _limit_threads(config: pytest.Config) -> None:
    """Size the thread pools that torch and NumPy make at their import; they never get smaller.

    Workers inherit the variable: in them a conftest that imports torch is read before this.
    """
    too_late = threads.runs_tests(config) and "torch" in sys.modules
    if config.getoption("qtune") and not too_late and _OPENMP not in os.environ:
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


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Gate files, wherever tests are looked for."""
    if not file_path.name.endswith(GATE_FILE):
        return None
    from pytest_qtune.gate_files import GateFileNode

    made: pytest.Collector = GateFileNode.from_parent(parent, path=file_path)
    return made


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


def _count_attempt(item: pytest.Item) -> None:
    """A test that another plugin runs again leaves the numbers of its last attempt only."""
    attempt = item.stash.get(ATTEMPT, 0) + 1
    item.stash[ATTEMPT] = attempt
    if attempt > 1:
        item.stash[RESULTS] = []
        junit.forget(item)


def _collect(item: pytest.Item) -> None:
    """Keep what the assertions of this phase found; what can't be reported fails the test."""
    record = sys.modules.get("qtune.testing.record")
    if record is not None:
        from pytest_qtune.collecting import collect

        collect(item, record.drain(), item.stash.setdefault(RESULTS, []))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Collect after the fixtures."""
    _count_attempt(item)
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
    if call.excinfo is not None:
        from pytest_qtune import frames

        frames.shorten(item.config, call.excinfo)
    report = yield
    _identify(item, report)
    if report.failed and call.excinfo is not None and hasattr(call.excinfo.value, "qtune_snippet"):
        report.longrepr = str(call.excinfo.value)  # without pytest's margin the script can be run
    results = item.stash.get(RESULTS, None)
    if results:
        report.qtune = list(results)
        results.clear()
        junit.attach(item, report, report.qtune)
    elif report.failed and _uses_stages(item):
        report.qtune = []  # it failed before it could assert: the report names it
    return report


def _uses_stages(item: pytest.Item) -> bool:
    """Whether a test is about a quantized model."""
    names = getattr(item, "fixturenames", ())
    stages = {qtune_stages.__name__, qtune_onnx_stages.__name__}
    return not stages.isdisjoint(names) or item.path.name.endswith(GATE_FILE)


def _identify(item: pytest.Item, report: Any) -> None:
    """Say what the report's own id doesn't: the test's id without xdist's group, the attempt."""
    if (plain := rerun.test_id(item)) != report.nodeid:
        report.qtune_id = plain
    if (attempt := item.stash.get(ATTEMPT, 1)) > 1:
        report.qtune_attempt = attempt
    if report.failed:
        report.qtune_rerun = rerun.command(item)
