"""The graph under construction: nodes with their meta data, arguments, and tensors by identity."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.capture.aliases import Aliases
from qtune.capture.ambient import Ambient
from qtune.capture.branches import BLOCK
from qtune.capture.conditions import Conditions
from qtune.capture.ledger import Ledger
from qtune.capture.nodes import describe, name_hint
from qtune.capture.origins import Origins
from qtune.capture.sizes import Flag, SizeFloat, Symbol, is_symbol
from qtune.capture.source import caller
from qtune.capture.structure import field_names
from qtune.errors import CaptureError


class Tape:
    """Writes nodes. ``recording`` is true while the model's own code runs, false inside of calls.

    ``varying``: nodes that depend on an input. ``changing``: nodes whose data another call may
    change (inputs, parameters, buffers, random numbers).
    """

    def __init__(self, model: nn.Module) -> None:
        self.graph = fx.Graph()
        self.ledger = Ledger()
        self.origins = Origins(self, model)
        self.conditions = Conditions(self)
        self.aliases = Aliases(self)
        self.varying: set[fx.Node] = set()
        self.changing: set[fx.Node] = set()
        self.problem: CaptureError | None = None
        self._ambient = Ambient()
        self._paused = 0
        self._scopes = [""]
        self._blocks: list[tuple[str, int]] = []
        self._runs: Counter[str] = Counter()

    @property
    def recording(self) -> bool:
        """Whether calls are recorded now."""
        return not self._paused

    def note(self, error: CaptureError) -> None:
        """The first error counts: a model that catches it takes a path that it wouldn't take."""
        self.problem = self.problem or error

    def close(self) -> None:
        """End the recording: sizes that outlive it (in someone's cache) are plain from now on."""
        self._paused += 1

    def release(self) -> None:
        """Let go of the example's tensors."""
        self.ledger = Ledger()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is recorded: the inside of a leaf or of a torch function."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes belong to the module ``name``."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    @contextmanager
    def block(self, path: str) -> Iterator[None]:
        """Nodes belong to one run of the dynamic block at ``path``."""
        self._runs[path] += 1
        self._blocks.append((path, self._runs[path]))
        try:
            yield
        finally:
            self._blocks.pop()

    def emit(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        *,
        value: Any = None,
        kind: str = "op",
    ) -> fx.Node:
        """Append a node. ``value`` is the example's result; only shapes and dtypes are kept."""
        node = self.graph.create_node(op, target, args, dict(kwargs or {}), name_hint(target))
        node.meta.update(scope=self._scopes[-1], source=caller(), kind=kind)
        node.meta.update(self._ambient.changes())
        if self._blocks:
            node.meta[BLOCK] = self._blocks[-1]
        describe(node, value)
        inputs = node.all_input_nodes
        if any(source in self.varying for source in inputs):
            self.varying.add(node)
        if any(source in self.changing for source in inputs):
            self.changing.add(node)
        return node

    def placeholder(self, name: str, tensor: Tensor) -> None:
        """An input of the graph."""
        node = self.emit("placeholder", name, (), value=tensor, kind="input")
        node.meta["source"] = ""  # the line that asked for the recording is none of the model
        self.varying.add(node)
        self.changing.add(node)
        self.ledger.enter(tensor, node, [])

    def convert(self, value: Any) -> Any:
        """An argument as fx stores it: tensors, sizes and flags become nodes."""
        if isinstance(value, Tensor):
            return self.node_of(value)
        if is_symbol(value):
            return self.symbol_node(value)
        if isinstance(value, torch.Generator):
            raise CaptureError(
                f"{caller()}: a random generator is an argument; the recorded graph would go on "
                "where this run stopped. Draw from torch's own generator, or take the random "
                "tensor as an input"
            )
        if isinstance(value, slice):
            return slice(*map(self.convert, (value.start, value.stop, value.step)))
        if isinstance(value, tuple):
            return self._convert_tuple(value)
        if isinstance(value, list):
            return [self.convert(item) for item in value]
        if isinstance(value, dict):
            return {key: self.convert(item) for key, item in value.items()}
        return value

    def _convert_tuple(self, value: tuple[Any, ...]) -> Any:
        items = [self.convert(item) for item in value]
        if not field_names(type(value)):
            return tuple(items)
        try:
            return type(value)(*items)
        except (TypeError, AttributeError):
            raise CaptureError(
                f"{caller()}: a {type(value).__name__} can't be passed between recorded calls; "
                "make it and use it inside one torch.autograd.Function or scripted module"
            ) from None

    def symbol_node(self, symbol: Symbol) -> Any:
        """The node of a size or flag that is used as an argument.

        A fraction of sizes leaves as the number it is: what operators get stays a constant.
        """
        if symbol._tape is not self.conditions:  # of an earlier recording, out of a cache
            return symbol._value
        if type(symbol) is SizeFloat:
            return symbol._leave()
        if type(symbol) is Flag:
            symbol.used = True
        return symbol._origin

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node of the tensor's present value."""
        entry = self.ledger.find(tensor)
        if entry is None:
            entry = self.origins.adopt(tensor)
        if entry.missing:
            self.aliases.update(entry)
        return entry.node

    def bind(self, value: Any, node: fx.Node, sources: list[Tensor]) -> None:
        """``node`` made ``value``: enter its tensors; a known one is taken over by the node."""
        if isinstance(value, Tensor):
            entry = self.ledger.find(value)
            if entry is None:
                self.ledger.enter(value, node, sources)
            else:
                entry.node = node
                entry.missing.clear()
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._bind_item(item, node, key, sources)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                self._bind_item(item, node, index, sources)

    def _bind_item(self, item: Any, node: fx.Node, key: Any, sources: list[Tensor]) -> None:
        if isinstance(item, Tensor | Mapping | tuple | list):
            getitem = self.emit(
                "call_function", operator.getitem, (node, key), value=item, kind="item"
            )
            self.bind(item, getitem, sources)
