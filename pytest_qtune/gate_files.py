"""``*.qtune.toml`` files as tests: one item for each check, or for each layer of a check.

A file loads nothing of the user at collection, unless a check has ``per_layer``: the names of the
layers are those of the prepared model. Items of one file share the model, those of one check its
comparison; with xdist's loadgroup the latter run in one worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntry,
    ReprFileLocation,
    ReprTraceback,
    TerminalRepr,
)

from pytest_qtune import options, threads

if TYPE_CHECKING:
    from qtune.testing.gatefile import Check, GateFile
    from qtune.testing.gatefile.modules import Modules
    from qtune.testing.gatefile.run import GateRun
    from qtune.testing.result import AssertionResult

MODULES = pytest.StashKey[dict[Path, "Modules"]]()
_FAIL = "E   "


class GateFileNode(pytest.File):
    """One gate file."""

    gates: GateFile

    def collect(self) -> Iterator[GateItem]:
        """An item for each check, in the order of the file."""
        from qtune.testing.gatefile import GateFileError, read

        try:
            self.gates = read(self.path, self.nodeid)
            for check in self.gates.checks:
                yield from self._items(check)
        except GateFileError as error:
            raise self.CollectError(str(error)) from error

    def _items(self, check: Check) -> Iterator[GateItem]:
        if not check.per_layer or check.skip:
            yield self._marked(CheckItem.from_parent(self, name=check.name, check=check))
            return
        from qtune.testing.gatefile.layers import OTHERS

        with self.running() as run:
            layers = run.operators(check)
        group = f"{self.nodeid}:{self.gates.check_line(check)}"
        for layer, inside in layers.items():
            name = check.layer_name(layer)
            item = LayerItem.from_parent(self, name=name, check=check, layer=layer, inside=inside)
            yield self._marked(item, group)
        name = check.layer_name(OTHERS)
        yield self._marked(
            OthersItem.from_parent(self, name=name, check=check, known=frozenset(layers)), group
        )

    def _marked(self, item: GateItem, group: str = "") -> GateItem:
        check = item.check
        for name in check.marks:
            item.add_marker(getattr(pytest.mark, name))
        if check.skip:
            item.add_marker(pytest.mark.skip(reason=check.skip))
        reason = item.known_failure
        if reason:
            # a check that can't be made is no failure that anybody expects
            item.add_marker(pytest.mark.xfail(reason=reason, raises=AssertionError))
        if group and self.config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(name=group))
        return item

    @contextmanager
    def running(self) -> Iterator[GateRun]:
        """The run of this file, with the user's modules as its folder has them."""
        threads.limit_torch(self.config)
        with self.run.active():
            yield self.run

    @cached_property
    def run(self) -> GateRun:
        """What all items of the file share in this process."""
        from pytest_qtune import cache
        from qtune.testing.gatefile.modules import Modules
        from qtune.testing.gatefile.run import GateRun, Settings

        folder = self.gates.folder
        known = self.config.stash.setdefault(MODULES, {})
        modules = known.setdefault(folder, Modules(folder, self.config.rootpath))
        factory = self.config._tmp_path_factory  # type: ignore[attr-defined]
        store = cache.store(self.config, factory)
        return GateRun(self.gates, modules, Settings(store, options.get(self.config, "march")))


class GateItem(pytest.Item):
    """An item of a gate file."""

    parent: GateFileNode

    def __init__(self, *, name: str, parent: GateFileNode, check: Check, **rest: Any) -> None:
        # as text: pytest 9.2 reads ids of earlier runs from text, with brackets as parameters
        super().__init__(name=name, parent=parent, nodeid=f"{parent.nodeid}::{name}", **rest)
        self.check = check

    def runtest(self) -> None:
        """Raise ``AssertionError`` with the message of what is bad."""
        __tracebackhide__ = True
        from qtune.testing.gatefile.run import conclude

        with self.parent.running() as run:
            found = self.found(run)
        conclude(found)

    def found(self, run: GateRun) -> list[AssertionResult]:
        """The results of this item."""
        raise NotImplementedError(f"{type(self).__name__}.found")

    @property
    def known_failure(self) -> str:
        """Why the item is known to fail, if it is."""
        return self.check.xfail

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the check stands, from line 0."""
        return self.path, self._line - 1, self.name

    @property
    def _line(self) -> int:
        return self.parent.gates.check_line(self.check)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **rest: Any
    ) -> str | TerminalRepr:
        """The message alone; a traceback only of what the user's own code raised."""
        from qtune.testing.gatefile import GateFileError

        is_check = hasattr(excinfo.value, "qtune_result")
        if not (is_check or isinstance(excinfo.value, GateFileError)):
            return super().repr_failure(excinfo, *args, **rest)
        message = str(excinfo.value)
        lines = [f"{_FAIL}{line}".rstrip() for line in message.split("\n")]
        kind = "AssertionError" if is_check else "GateFileError"
        place = ReprFileLocation(self.parent.nodeid, self._line, kind)
        entry = ReprEntry(lines, None, None, place, "long")
        crash = ReprFileLocation(str(self.path), self._line, message)
        return ExceptionChainRepr([(ReprTraceback([entry], None, "long"), crash, None)])


class CheckItem(GateItem):
    """A check as one item."""

    def found(self, run: GateRun) -> list[AssertionResult]:
        """What the check finds."""
        from qtune.testing.gatefile.kinds import kinds

        stored = None
        if kinds()[self.check.kind].stores:
            from pytest_qtune.baselines import baseline_of

            stored = baseline_of(self)
        return run.results(self.check, stored)


class LayerItem(GateItem):
    """One layer of a check. ``inside``: the layer that it is fused into, if it is."""

    def __init__(self, *, layer: str, inside: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.layer = layer
        self.inside = inside

    @property
    def known_failure(self) -> str:
        """That of the layer, or of the whole check."""
        return self.check.xfail_layers.get(self.layer, self.check.xfail)

    def found(self, run: GateRun) -> list[AssertionResult]:
        """What the comparison found at this layer; a skip where it has no such layer."""
        if self.inside:
            raise _skipped(f"fused into {self.inside}, which is compared")
        results = run.layers(self.check).of(self.layer)
        if not results:
            raise _skipped(f"not compared: {' and '.join(self.check.stages)} don't both have it")
        return results


def _skipped(reason: str) -> BaseException:
    """A skip that is shown at the line of the check, as that of a mark is."""
    return pytest.skip.Exception(reason, _use_item_location=True)


class OthersItem(GateItem):
    """What the comparison found beyond the layers that have items."""

    def __init__(self, *, known: frozenset[str], **rest: Any) -> None:
        super().__init__(**rest)
        self.known = known

    def found(self, run: GateRun) -> list[AssertionResult]:
        """The operators without an item."""
        return run.layers(self.check).others(self.known)
