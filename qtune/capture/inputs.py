"""Example inputs and data batches: what the user passes, as the arguments of ``forward``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from qtune.capture.structure import flatten_named
from qtune.errors import PrepareError, QtuneError


class Inputs:
    """The arguments of one call of a model: ``Inputs(x, mask=m)`` stands for ``model(x, mask=m)``.

    ``args`` is a tuple, ``kwargs`` a dict; neither is changed after construction.
    """

    __slots__ = ("args", "kwargs")

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        parts = [_short(value) for value in self.args]
        parts += [f"{name}={_short(value)}" for name, value in self.kwargs.items()]
        return f"Inputs({', '.join(parts)})"


def as_inputs(
    example: Any, where: str = "prepare", error: type[QtuneError] = PrepareError
) -> Inputs:
    """Arguments that ``example`` stands for (architecture.md decision 8).

    A tensor or a dict is one argument, a plain tuple the positional ones, ``Inputs`` itself. A list
    means several examples (:func:`as_example_list`) and is refused here. Raises ``error`` with the
    name of the caller, ``where``, for NumPy arrays and for examples without any tensor.
    """
    if example is None:
        raise error(
            f"{where}: no example inputs came; pass a tensor, a tuple of arguments or qtune.Inputs"
        )
    if isinstance(example, list):
        raise error(
            f"{where}: a list of {len(example)} came where one example is needed; a list means "
            "several examples. Pass one of them, or a tuple of the positional arguments"
        )
    if isinstance(example, Inputs):
        inputs = example
    elif type(example) is tuple:
        inputs = Inputs(*example)
    else:
        inputs = Inputs(example)
    problem = _problem(inputs)
    if problem:
        raise error(f"{where}: {problem}")
    return inputs


def as_example_list(
    examples: Any, where: str = "prepare", error: type[QtuneError] = PrepareError
) -> list[Inputs]:
    """All examples: a list gives one for each item, anything else is a single one."""
    if not isinstance(examples, list):
        return [as_inputs(examples, where, error)]
    if not examples:
        raise error(f"{where}: the list of example inputs is empty; give at least one")
    return [as_inputs(example, where, error) for example in examples]


def _problem(inputs: Inputs) -> str | None:
    """What is wrong with the arguments of a call, and what to do."""
    leaves = flatten_named((inputs.args, dict(inputs.kwargs)))
    for name, leaf in leaves:
        if _is_array(leaf):
            return (
                f"example input {_place(name)} is numpy.{type(leaf).__name__} where a "
                "torch.Tensor is needed; pass torch.from_numpy(x)"
            )
    if any(isinstance(leaf, torch.Tensor) for _, leaf in leaves):
        return None
    came = ", ".join(f"input {_place(name)} is {_short(leaf)}" for name, leaf in leaves)
    return (
        f"no tensor among the example inputs ({came or 'they are empty'}); "
        "pass the tensors that the model's forward takes"
    )


def _place(name: str) -> str:
    """``0-1-k`` (args or kwargs, then the path) as users count: ``1-k``."""
    return name.partition("-")[2]


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"Tensor{list(value.shape)}"
    text = repr(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"{type(value).__name__} {text}"
