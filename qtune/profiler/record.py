"""The result of one operator in one run, and a whole run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from qtune.capture.structure import flatten, flatten_named, unflatten


@dataclass(frozen=True, slots=True)
class OpRecord:
    """The result of one operator in one run.

    ``op_type``: its qualified class or function. ``value``: real numbers. ``scale``: ``None`` where
    the result is no quantized number. ``dtype``: ``qint8``, ``qint16``, ``torch.float32``, ...
    ``input_shapes`` and ``inputs`` by operand. ``op``: the operator's name in the registry, where
    known; ``owner``: its name, also for a second call or result. ``data``: which of the operands
    that are tensors no operator computed: inputs of the model and constants.
    """

    name: str
    op_type: str
    value: Tensor
    scale: float | None
    dtype: str
    input_shapes: tuple[tuple[int, ...] | None, ...] = ()
    inputs: tuple[Any, ...] = ()
    op: str = ""
    owner: str = ""
    data: tuple[int, ...] = ()


OnRecord = Callable[[OpRecord], None]
"""Takes a record while its model runs. Its tensors are the model's own: the next operators may
change them in place, so what is to stay is copied or written to disk at once."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One run: the outputs as the model gave them, and the records in order of execution.

    ``records`` may read the values from disk when they are asked for.
    """

    outputs: Any
    records: Mapping[str, OpRecord] = field(default_factory=dict)

    def named_outputs(self) -> list[tuple[str, Any]]:
        """Output tensors by name (numerics.md section 5); ``""`` for a single one."""
        return [(name, leaf) for name, leaf in flatten_named(self.outputs)]


class Kept(dict[str, OpRecord]):
    """Records in memory, as values: :meth:`note` copies them."""

    def note(self, record: OpRecord) -> None:
        """Keep a copy of ``record``."""
        inputs = tuple(copied(value) for value in record.inputs)
        self[record.name] = replace(record, value=copied(record.value), inputs=inputs)


def copied(value: Any) -> Any:
    """Tensors as new ones without gradients, also inside of lists and tuples."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple | list):
        return [copied(item) for item in value]
    return value


def duplicated(outputs: Any) -> Any:
    """The outputs of a model in containers of their own, for code of the user's that may write to
    them; what is no tensor is the same object.
    """
    leaves, spec = flatten(outputs)
    return unflatten([v.clone() if isinstance(v, Tensor) else v for v in leaves], spec)


def plain(value: Any) -> Any:
    """A tensor of torch's own class, for any subclass of it."""
    is_plain = not isinstance(value, Tensor) or type(value) is Tensor
    return value if is_plain else value.as_subclass(torch.Tensor)
