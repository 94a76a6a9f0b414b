"""Example inputs and data batches: what the user passes, as the arguments of ``forward``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qtune.capture.interface import signature_of
from qtune.capture.nodes import tensors_in
from qtune.capture.structure import flatten_named
from qtune.errors import PrepareError, QtuneError


class Inputs:
    """The arguments of one call of a model: ``Inputs(x, mask=m)`` stands for ``model(x, mask=m)``.

    ``args`` is a tuple, ``kwargs`` a dict; neither is changed after construction.
    """

    __slots__ = ("args", "kwargs", "training")

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    training: bool | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self.training = None

    def in_mode(self, *, training: bool) -> Inputs:
        """The same call, to be recorded in training or eval mode, whichever the model is in."""
        copy = Inputs(*self.args, **self.kwargs)
        copy.training = training
        return copy

    def with_kwargs(self, kwargs: Mapping[str, Any]) -> Inputs:
        """The same call with more, or other, keyword arguments."""
        copy = Inputs(*self.args, **{**self.kwargs, **kwargs})
        copy.training = self.training
        return copy

    def __repr__(self) -> str:
        parts = [_short(value) for value in self.args]
        parts += [f"{name}={_short(value)}" for name, value in self.kwargs.items()]
        return f"Inputs({', '.join(parts)})"


def spelled(signature: inspect.Signature, args: Any, kwargs: Mapping[str, Any]) -> str:
    """The call as a user writes it down: ``qtune.Inputs(image, task='seg')``."""
    bound = signature.bind(*args, **kwargs)
    parts = [_spelled(name, value) for name, value in _named(signature, bound.args)]
    parts += [f"{name}={_spelled(name, value)}" for name, value in bound.kwargs.items()]
    return f"qtune.Inputs({', '.join(parts)})"


def _named(signature: inspect.Signature, args: tuple[Any, ...]) -> list[tuple[str, Any]]:
    names = list(signature.parameters)
    return [(names[min(place, len(names) - 1)], value) for place, value in enumerate(args)]


def _spelled(name: str, value: Any) -> str:
    is_short = not isinstance(value, torch.Tensor) and len(repr(value)) <= 40
    return repr(value) if is_short and not list(tensors_in(value)) else name


def spelled_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments as a user writes them, tensors by their shape: ``Tensor[4, 3], k=int 2``."""
    items = [_short(value) for value in args]
    return ", ".join([*items, *(f"{name}={_short(value)}" for name, value in kwargs.items())])


@contextmanager
def naming(place: str, inputs: Inputs) -> Iterator[None]:
    """Within the block the model is called; an error gets a note that says with what.

    ``place``: what is running and on which batch.
    """
    try:
        yield
    except Exception as error:
        error.add_note(f"raised on {place}, by model({spelled_call(inputs.args, inputs.kwargs)})")
        raise


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


def batch_to_inputs(
    batch: Any,
    model: Any,
    index: int = 0,
    where: str = "calibration",
    error: type[QtuneError] = PrepareError,
) -> Inputs:
    """The call of ``model`` that item ``index`` of a data loader stands for (decision 8).

    A tensor or dict is one argument, a tuple or list (not a named tuple) the positional ones; if
    forward takes one argument only, its first element: the others are labels. ``model``: an
    ``nn.Module``, else nothing is known of its arguments. Raises ``error`` with the index, what
    came, what forward takes and the remedy.
    """
    place = f"{where}: batch {index}"
    signature = _signature(model)
    is_sequence = isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields")
    if signature is None or isinstance(batch, Inputs):
        inputs = as_inputs(batch, place, error)
    elif is_sequence and batch and len(_positional(signature)) == 1 and not _takes_more(signature):
        inputs = as_inputs(Inputs(batch[0]), place, error)
    else:
        inputs = as_inputs(tuple(batch) if is_sequence else batch, place, error)
    if signature is not None:
        _check_call(signature, batch, inputs, place, error)
    return inputs


def _check_call(
    signature: inspect.Signature, batch: Any, inputs: Inputs, place: str, error: type[QtuneError]
) -> None:
    """Whether forward takes such a call; a dict of its arguments by name is no argument."""
    names = set(signature.parameters)
    is_named = isinstance(batch, Mapping) and len(names) > 1 and set(batch) <= names and batch
    try:
        signature.bind(*inputs.args, **inputs.kwargs)
        problem = ""
    except TypeError as reason:
        problem = str(reason)
    if not is_named and not problem:
        return
    remedy = (
        "its keys are names of arguments: pass qtune.Inputs(**batch)"
        if is_named
        else "pass a tuple of its positional arguments, without labels, or "
        "qtune.Inputs(*args, **kwargs), such as (qtune.Inputs(x) for x, label in loader)"
    )
    came = (
        f"a dict with the keys {', '.join(map(repr, batch))}"
        if isinstance(batch, Mapping)
        else f"a {type(batch).__name__}: {inputs!r}"
    )
    reason_text = f" ({problem})" if problem else ""
    raise error(f"{place}: {came} came, but forward takes {signature}{reason_text}; {remedy}")


def _signature(model: Any) -> inspect.Signature | None:
    """Of the float model's forward, also where ``model`` is its recording."""
    recorded = getattr(model, "signature", None)
    if isinstance(recorded, inspect.Signature):
        return recorded
    return signature_of(model) if isinstance(model, nn.Module) else None


def _positional(signature: inspect.Signature) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in signature.parameters.values() if p.kind in kinds]


def _takes_more(signature: inspect.Signature) -> bool:
    kinds = [p.kind for p in signature.parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds


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
    if next(iter(tensors_in(value)), None) is not None:
        return f"{type(value).__name__} of tensors"
    text = repr(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"{type(value).__name__} {text}"
