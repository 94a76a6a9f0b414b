"""The fixture ``qtune_baseline``, and what becomes of the baselines that a process's tests ask for.

A test compares where it runs; what it measured travels on its report. Only the controller writes
(``baseline_run``).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import options, rerun

if TYPE_CHECKING:
    from qtune.testing.baseline import Baseline

FOLDER = "__qtune__"
"""As in ``qtune.testing.baseline_file``, which a run without such a folder does not load."""
GATES = "gates.json"
"""Name of the file in a root folder's ``__qtune__`` that no test file owns."""
OUTPUT, FILES_OUTPUT = "qtune_collected", "qtune_baseline_files"
"""Keys of xdist's ``workeroutput``."""
_ASKED = pytest.StashKey["Baseline"]()
_SENT = pytest.StashKey[int]()

Collected = dict[str, dict[str, str]]
"""Keys of the collected tests by test file (as in node ids) and id."""


@pytest.fixture
def qtune_baseline(request: pytest.FixtureRequest) -> Baseline:
    """The stored values of this test: ``qtune_baseline.check("sqnr_db", 31.2, max_drop=0.5)``.

    They lie in ``__qtune__/<module>.json`` beside the test, under class, function and parameters.
    ``--qtune-update`` writes them.
    """
    return baseline_of(request.node)


def baseline_of(item: pytest.Item) -> Baseline:
    """The ``Baseline`` of an item that runs now; what it compares is reported, and written."""
    from qtune.testing.baseline import Baseline
    from qtune.testing.baseline_file import baseline_path

    made = Baseline(
        baseline_path(item.path), key_of(item), update=options.get(item.config, "update")
    )
    item.stash[_ASKED] = made
    item.stash[_SENT] = 0
    return made


def key_of(item: pytest.Item) -> str:
    """Class, function and parameters, such as ``TestNet.test_head[nash-e]``.

    Never the node id: it changes with the folder, and xdist's loadgroup adds to it.
    """
    chain = item.listchain()
    last_file = max((i for i, node in enumerate(chain) if isinstance(node, pytest.File)), default=0)
    return ".".join(node.name for node in chain[last_file + 1 :])


def check_update(config: pytest.Config) -> None:
    """Refuse to write baselines in CI: nobody would look at the change."""
    if options.get(config, "update") is None or options.get(config, "update_in_ci"):
        return
    from qtune.testing.baseline_file import in_ci

    if in_ci():
        raise pytest.UsageError(
            f"command line option --qtune-update: CI is set (CI={os.environ['CI']}), and baselines "
            "are written where somebody looks at the change; run it at your desk and commit the "
            "files, or give --qtune-update-in-ci as well"
        )


class QtuneBaselines:
    """A plugin object of every process that runs tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.collected: Collected = {}
        self.files: list[str] = []
        self._has_file: dict[Path, bool] = {}
        self._stored: dict[Path, Mapping[str, Any]] = {}

    def pytest_collect_file(self, file_path: Path) -> None:
        """Note files of baselines without a test file, as pytest comes along them."""
        if file_path.parent.name == FOLDER and file_path.suffix == ".json":
            from qtune.testing.baseline_file import sources

            shown = shown_path(self.config, file_path)
            # a folder below may be the root folder of runs of its own: its gates belong to those
            owned = file_path.name == GATES or any(p.exists() for p in sources(file_path))
            self.files += [] if owned else [shown]

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note the tests that a stored baseline may belong to, before ``-k`` and others choose."""
        if self._stores(item.path):
            source = item.nodeid.partition("::")[0]
            self.collected.setdefault(source, {})[rerun.test_id(item)] = key_of(item)

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside of what collects results
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Fail a test that ran to its end without asking for an entry it has."""
        __tracebackhide__ = True
        outcome = yield
        baseline = item.stash.get(_ASKED, None)
        if baseline is None and key_of(item) in self._keys(item.path):
            baseline = baseline_of(item)
        if baseline is not None:
            baseline.finish()
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Put what was compared in this phase on the report."""
        report = yield
        baseline = item.stash.get(_ASKED, None)
        if baseline is not None:
            report.qtune_baselines = _rows(item, baseline)
            item.stash[_SENT] = len(baseline.comparisons)
        if call.when == "teardown" and baseline is not None:
            del item.stash[_ASKED]  # a test that runs again starts anew
        return report

    def pytest_sessionfinish(self) -> None:
        """A worker tells what it collected; all workers collect the same."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[OUTPUT], output[FILES_OUTPUT] = self.collected, self.files

    def _stores(self, source: Path) -> bool:
        """Whether there is a file of baselines beside a test file."""
        if source not in self._has_file:
            self._has_file[source] = (source.parent / FOLDER).is_dir() and _is_there(source)
        return self._has_file[source]

    def _keys(self, source: Path) -> Mapping[str, Any]:
        """The keys of the file; those of one that can't be read are asked for by other tests."""
        if not self._stores(source):
            return {}
        if source not in self._stored:
            from qtune.errors import BaselineError
            from qtune.testing.baseline_file import BaselineFile, baseline_path

            try:
                self._stored[source] = BaselineFile.read(baseline_path(source)).entries
            except BaselineError:  # the run lists it
                self._stored[source] = {}
        return self._stored[source]


def _is_there(source: Path) -> bool:
    from qtune.testing.baseline_file import baseline_path

    return baseline_path(source).is_file()


def _rows(item: pytest.Item, baseline: Baseline) -> list[Any]:
    """What the report carries of each comparison: its public part, and what to write."""
    from pytest_qtune.plain import to_plain

    found = baseline.comparisons[item.stash[_SENT] :]
    shown = shown_path(item.config, baseline.path)
    rows = [
        {
            "row": {"file": shown, **comparison.to_dict()},
            "entry": None if comparison.entry is None else comparison.entry.to_json(),
            "remove": comparison.remove,
        }
        for comparison in found
    ]
    plain = to_plain(rows, f"baselines of {item.nodeid}")
    return plain if isinstance(plain, list) else []


def shown_path(config: pytest.Config, path: Path) -> str:
    """A path as node ids spell them: from the root folder, if it lies below."""
    try:
        return path.relative_to(config.rootpath).as_posix()
    except ValueError:
        return str(path)
