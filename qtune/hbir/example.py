"""What each node of a captured graph gives on the example inputs: shapes, sizes, constants.

The float functions run, not the fake-quantizes: no observer, statistic or training flag changes,
and no hook of the user runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg

from qtune.capture.ambient import in_modes
from qtune.capture.guards import is_guard
from qtune.capture.members import attribute_at
from qtune.errors import ExportError
from qtune.ops.kernel import ExampleSize

TRAINING = "training"

_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError)

_FACTORIES = frozenset(
    {
        "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "zeros_like", "ones_like",
        "full_like", "empty_like", "size", "dim", "ndimension", "numel", "nelement",
    }
)  # fmt: skip
"""torch's functions that look at the shape and dtype of their first argument only."""

_OF_DTYPE = frozenset({"is_floating_point", "is_complex", "is_signed", "element_size"})
"""torch's questions about a dtype, which a module's inputs and operators fix."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Shape and dtype of a tensor result. ``data`` is kept where no input decides it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    data: torch.Tensor | None = None

    @property
    def dtype_name(self) -> str:
        """``float32``, ``int64``, ..."""
        return str(self.dtype).removeprefix("torch.")


class Example:
    """One run of ``model.graph``; ``facts[node]`` describes each result.

    A fact is :class:`TensorFacts`, a tuple or list of facts, or a plain Python value; numbers that
    the inputs decide are :class:`~qtune.ops.kernel.ExampleSize`.
    """

    def __init__(self, model: nn.Module, leaves: Sequence[torch.Tensor]) -> None:
        self.facts: dict[fx.Node, Any] = {}
        self._model = model
        self._leaves = [leaf.detach().clone() for leaf in leaves]
        self._values: dict[fx.Node, Any] = {}
        self._open: set[fx.Node] = set()
        self._data: set[fx.Node] = set()
        self._run()

    def unchecked_guards(self) -> list[str]:
        """Conditions on values (not sizes) that held and that an exported graph can't check."""
        return [
            f"{node.args[-2]} ({node.args[-1]})"
            for node in self.facts
            if is_guard(node) and any(value in self._data for value in node.all_input_nodes)
        ]

    def follows_inputs(self, node: fx.Node) -> bool:
        """Whether inputs decide the result of ``node``, if only by their sizes."""
        return node in self._open

    @torch.no_grad()
    def _run(self) -> None:
        graph: fx.Graph = self._model.graph  # type: ignore[assignment]
        last = _last_users(graph)
        placeholders = iter(self._leaves)
        for node in graph.nodes:
            if node.op == "output":
                continue
            self._classify(node)
            value = next(placeholders) if node.op == "placeholder" else self._evaluate(node)
            self._values[node] = value
            self.facts[node] = self._facts(value, node)
            for dead in last.get(node, ()):
                del self._values[dead]

    def _evaluate(self, node: fx.Node) -> Any:
        is_picked = getattr(self._model, "is_picked", False)
        if is_picked and is_guard(node) and any(n in self._data for n in node.all_input_nodes):
            return None  # it held with fake-quantized values, which are not computed here
        args = map_arg(node.args, self._values.__getitem__)
        kwargs = map_arg(node.kwargs, self._values.__getitem__)
        try:
            return in_modes(lambda values: self._call(node, *values), node.meta)(
                [args, dict(kwargs)]
            )
        except _FAILURES as error:
            where = node.meta.get("name") or node.name
            raise ExportError(
                f"{where} ({node.meta.get('source', 'unknown source')}) fails on the example "
                f"inputs: {error}"
            ) from error

    def _call(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        if node.op == "get_attr":
            value = attribute_at(self._model, str(node.target).split("."))
            return value.clone() if any(map(_in_place, node.users)) else value
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.target == "__setitem__":
            tensor, index, value = args
            tensor[index] = value
            return tensor
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        module: Any = self._model.get_submodule(str(node.target))
        if hasattr(module, "compute"):
            attrs = {**module.attrs, **kwargs}
            if module.follows_training:
                attrs[TRAINING] = False
            return module.compute(module.fill(args), attrs)
        return _in_eval(module, args, kwargs)

    def _classify(self, node: fx.Node) -> None:
        """Whether inputs decide the result (its sizes at least), and whether their values do."""
        sources = node.all_input_nodes
        if node.op == "placeholder" or any(source in self._open for source in sources):
            self._open.add(node)
        by_shape = node.meta.get("kind") == "size" or is_factory(node) or _is_shape(node)
        values = sources[1:] if by_shape else sources
        if node.op == "placeholder" or any(source in self._data for source in values):
            self._data.add(node)

    def _facts(self, value: Any, node: fx.Node) -> Any:
        if isinstance(value, torch.Tensor):
            data = None if node in self._data else value.detach()
            return TensorFacts(tuple(value.shape), value.dtype, data)
        if isinstance(value, (tuple, list)):
            return tuple(self._facts(item, node) for item in value)
        if isinstance(value, Mapping):
            return {key: self._facts(item, node) for key, item in value.items()}
        is_open = node in self._open
        if is_open and isinstance(value, int) and not isinstance(value, bool):
            return ExampleSize(value)
        return value


def is_factory(node: fx.Node) -> bool:
    """Whether the call looks at the shape and dtype of its first argument only (zeros_like)."""
    return _name(node) in _FACTORIES


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_shape(node: fx.Node) -> bool:
    is_attribute = node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")
    return is_attribute or _name(node) in _OF_DTYPE


def _in_place(node: fx.Node) -> bool:
    return node.op == "call_method" and str(node.target).endswith("_")


def _in_eval(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """A float module's own forward, in eval mode and without hooks; flags as before after it."""
    flags = {m: m.training for m in module.modules()}
    try:
        module.eval()
        return module.forward(*args, **kwargs)
    finally:
        for m, training in flags.items():
            m.training = training


def _last_users(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node the values that no later node needs."""
    seen: set[fx.Node] = set()
    last: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(list(graph.nodes)):
        needed = [node, *node.all_input_nodes] if node.op != "output" else node.all_input_nodes
        for value in needed:
            if value not in seen:
                seen.add(value)
                last.setdefault(node, []).append(value)
    last.pop(next(iter(reversed(list(graph.nodes)))), None)
    return last
