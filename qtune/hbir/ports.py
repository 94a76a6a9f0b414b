"""The example inputs of an export: tensors in the graph's order, their names and containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten, unflatten
from qtune.errors import ArgumentError
from qtune.hbir.structure import Spec, describe, renumber


@dataclass(frozen=True, slots=True)
class Ports:
    """Inputs in the graph's order. ``structure``: the containers of the call around them."""

    tensors: list[torch.Tensor]
    names: list[str]
    descs: dict[str, str]
    structure: Spec


def bind_inputs(model: nn.Module, inputs: Inputs, names: Any, descs: Any) -> Ports:
    """Bind a call to the graph of ``model``; ``names`` and ``descs`` come in the call's structure.

    Inputs that are no tensors (strings, flags) are part of the structure and must come again.
    """
    leaves, spec = flatten((inputs.args, dict(inputs.kwargs)))
    # Tensors of their own, so that each is known by identity even if one was passed twice.
    leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = unflatten(leaves, spec)
    interface: Any = model.interface
    tensors = list(interface.inputs(args, kwargs))
    place = {id(tensor): index for index, tensor in enumerate(tensors)}
    containers, found = describe({"args": args, "kwargs": kwargs}, _is_tensor)
    order = [place[id(tensor)] for tensor in found]
    given = texts(names, len(tensors), "_input_", "input_names")
    ordered = given if names is None else [given[order.index(n)] for n in range(len(tensors))]
    by_call = [ordered[index] for index in order]
    return Ports(tensors, ordered, descriptions(descs, by_call), renumber(containers, order))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def texts(given: Any, count: int, prefix: str, argument: str) -> list[str]:
    """One name for each tensor: the given ones, else the numbered default."""
    if given is None:
        return [f"{prefix}{index}" for index in range(count)]
    names = _leaves(given)
    wrong = [item for item in names if not isinstance(item, str)]
    if wrong or len(names) != count or len(set(names)) != count:
        raise ArgumentError(
            f"export: {argument} must hold {count} different text(s) in the structure of the "
            f"tensors, got {given!r}"
        )
    return names


def descriptions(given: Any, names: Sequence[str]) -> dict[str, str]:
    """Description by name; several may be equal."""
    if given is None:
        return {}
    found = _leaves(given)
    if len(found) != len(names) or not all(isinstance(text, str) for text in found):
        raise ArgumentError(f"export: expected {len(names)} description(s), got {given!r}")
    return dict(zip(names, found, strict=True))


def _leaves(given: Any) -> list[Any]:
    value = (given.args, dict(given.kwargs)) if isinstance(given, Inputs) else given
    return flatten(value)[0]
