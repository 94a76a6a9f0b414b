"""Items that fuzz operators (``--qtune-fuzz``): ``qtune-fuzz::<operator>[kernels|integers]``.

They are added to whatever else was collected. On the command line ``qtune-fuzz`` stands for all of
them, ``qtune-fuzz::relu[kernels]`` for one; such words are taken out before pytest looks for files.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_qtune import options, threads

PREFIX = "qtune-fuzz"
FOLDER = "qtune-fuzz"
"""Below pytest's cache: examples that failed, which the next run tries first."""
KERNELS, INTEGERS = "kernels", "integers"


class FuzzItem(pytest.Item):
    """One property of one operator."""

    def __init__(self, *, name: str, op: str, prop: str, **rest: Any) -> None:
        # as text: pytest 9.2 reads ids of earlier runs from text, with brackets as parameters
        super().__init__(name=name, nodeid=f"{PREFIX}::{name}", **rest)
        self.op, self.prop = op, prop

    def runtest(self) -> None:
        """Fuzz; a march that has no such operator skips."""
        from qtune.testing.fuzzing.operator import fuzz_operator
        from qtune.testing.fuzzing.search import NothingFitsError

        threads.limit_torch(self.config)
        march = str(options.get(self.config, "march") or "nash-e")
        try:
            fuzz_operator(
                self.op,
                self.prop,
                march=march,
                examples=options.get(self.config, "fuzz_examples"),
                database=_database(self.config, march),
            )
        except NothingFitsError:
            pytest.skip(f"{march} takes none of the calls that {self.op} was sampled for")

    def reportinfo(self) -> tuple[Path, None, str]:
        """No file and no line: what is tested is the operator."""
        return self.config.rootpath, None, self.nodeid


class FuzzCollector(pytest.Collector):
    """The parent of all items, with the id ``qtune-fuzz``."""

    def collect(self) -> Iterator[FuzzItem]:
        """Two items for each operator that was asked for, in the order of names."""
        for name, (op, prop) in _items(self.config).items():
            yield FuzzItem.from_parent(self, name=name, op=op, prop=prop)


class QtuneFuzz:
    """A plugin object of every process of a run with ``--qtune-fuzz``."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ids = [word for word in config.args if _is_ours(word)]
        config.args[:] = [word for word in config.args if not _is_ours(word)]
        if not hasattr(config, "workerinput"):
            _need_hypothesis()
            self._check(self.ids)

    def _check(self, ids: Sequence[str]) -> None:
        """Refuse unknown operators and ids at the start."""
        known = {f"{PREFIX}::{name}" for name in _items(self.config)} | {PREFIX}
        unknown = [word for word in ids if word not in known]
        if unknown:
            raise pytest.UsageError(
                f"{unknown[0]}: no such item; an id is {PREFIX}::<operator>[{KERNELS}] or "
                f"[{INTEGERS}] of an operator that --qtune-fuzz stands for"
            )

    @pytest.hookimpl(tryfirst=True)  # before -k, -m and --lf choose
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Add the items; only the named ones, if any was named."""
        collector = FuzzCollector.from_parent(session, name=PREFIX, nodeid=PREFIX)
        report = session.ihook.pytest_make_collect_report(collector=collector)
        session.ihook.pytest_collectreport(report=report)  # counts and names what is added
        found = [item for item in report.result if isinstance(item, FuzzItem)]
        named = set(self.ids) - {PREFIX}
        items += [item for item in found if not named or item.nodeid in named]


def _items(config: pytest.Config) -> dict[str, tuple[str, str]]:
    """Operator and property of each item, by its name."""
    names = operators(options.get(config, "fuzz"))
    return {f"{name}[{prop}]": (name, prop) for name in names for prop in (KERNELS, INTEGERS)}


def operators(wanted: str) -> list[str]:
    """The operators that names and globs with commas stand for; all of ``*``, sorted.

    An unknown name, or a glob that fits nothing, is a ``UsageError`` with close matches.
    """
    from qtune.ops.registry import specs
    from qtune.testing.fuzzing.operands import LEFT_OUT

    known = sorted(specs().keys() - LEFT_OUT.keys())
    found: set[str] = set()
    for pattern in filter(None, (word.strip() for word in wanted.split(","))):
        fitting = fnmatch.filter(known, pattern)
        if pattern in LEFT_OUT:
            text = f"command line option --qtune-fuzz: {pattern} is left out: {LEFT_OUT[pattern]}"
            raise pytest.UsageError(text)
        if not fitting:
            raise pytest.UsageError(_unknown(pattern, known))
        found.update(fitting)
    if not found:
        raise pytest.UsageError("command line option --qtune-fuzz: no operator is named")
    return sorted(found)


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    hint = f"close matches: {', '.join(near)}" if near else "qtune lists them in docs/operators.md"
    if name.startswith(PREFIX):
        hint = f"write the id first: pytest {name} --qtune-fuzz"
    return (
        f"command line option --qtune-fuzz: no operator {name!r}; {hint}. An operator of yours is "
        "known once its module is imported, in conftest.py for example"
    )


def _database(config: pytest.Config, march: str) -> Path | None:
    """A folder in pytest's cache; operators share it, hypothesis keeps their examples apart."""
    cache = getattr(config, "cache", None)
    if cache is None:
        return None
    try:
        return Path(cache.mkdir(FOLDER)) / march
    except OSError:  # a read-only checkout
        return None


def _is_ours(word: str) -> bool:
    return word == PREFIX or word.startswith(PREFIX + "::")


def _need_hypothesis() -> None:
    from importlib.util import find_spec

    if find_spec("hypothesis") is None:
        raise pytest.UsageError(
            "command line option --qtune-fuzz: the package hypothesis is not installed; "
            'pip install "qtune[fuzz]"'
        )
