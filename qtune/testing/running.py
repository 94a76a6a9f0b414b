"""Runs models of any stage on an assertion's inputs, in the batch size of the export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qtune.analysis.observe import Model, Observation, float_twin, is_prepared, observe, run_model
from qtune.capture.inputs import Inputs, as_example_list
from qtune.capture.structure import flatten, flatten_named, unflatten
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.march import March, march


@dataclass(frozen=True, slots=True)
class Chunk:
    """Inputs that every model can run, of which the first ``rows`` count (``None``: all)."""

    inputs: Inputs
    rows: int | None = None

    def trim(self, value: Tensor) -> Tensor:
        """``value`` without the rows that only fill up the batch."""
        return value if self.rows is None or value.dim() == 0 else value[: self.rows]


def chunks(models: Sequence[Model], inputs: Any) -> list[Chunk]:
    """The inputs in batches that fit.

    HBIR modules have the batch size of their export. Where all tensors of an item share another
    one, it is split, and the last part filled up with copies of its last row.
    """
    sizes = {size for m in models if isinstance(m, HbirModule) and (size := _batch_of(m))}
    if len(sizes) > 1:
        raise ArgumentError(f"the modules were exported for different batch sizes: {sorted(sizes)}")
    items = as_example_list(inputs)
    if not sizes:
        return [Chunk(item) for item in items]
    (size,) = sizes
    return [chunk for item in items for chunk in _split(item, size)]


def _batch_of(module: HbirModule) -> int | None:
    first = {item.shape[0] for item in module[0].inputs if item.shape}
    return first.pop() if len(first) == 1 else None


def _split(item: Inputs, size: int) -> Iterator[Chunk]:
    leaves, spec = flatten((item.args, dict(item.kwargs)))
    lengths = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0}
    if len(lengths) != 1 or lengths == {size}:
        yield Chunk(item)
        return
    (length,) = lengths
    for start in range(0, length, size):
        rows = min(size, length - start)
        parts = [_part(leaf, start, rows, size) for leaf in leaves]
        args, kwargs = unflatten(parts, spec)
        yield Chunk(Inputs(*args, **kwargs), rows)


def _part(leaf: Any, start: int, rows: int, size: int) -> Any:
    if not isinstance(leaf, Tensor) or leaf.dim() == 0:
        return leaf
    part = leaf[start : start + rows]
    if rows == size:
        return part
    return torch.cat([part, part[-1:].expand(size - rows, *part.shape[1:])])


def outputs_of(model: Model, parts: Sequence[Chunk]) -> dict[str, Tensor]:
    """Output tensors by name, the chunks joined along the first axis."""
    found: dict[str, list[Tensor]] = {}
    with _evaluating(model):
        for part in parts:
            named = flatten_named(run_model(model, part.inputs))
            for name, leaf in ((n, v) for n, v in named if isinstance(v, Tensor)):
                found.setdefault(name, []).append(part.trim(leaf))
    return {
        name: torch.cat(leaves) if leaves[0].dim() else leaves[0] for name, leaves in found.items()
    }


def observations(model: Model, parts: Sequence[Chunk]) -> Iterator[Observation]:
    """One observation per chunk."""
    if isinstance(model, nn.Module) and not is_prepared(model):
        with _evaluating(model):
            model = float_twin(model, parts[0].inputs)
    with _evaluating(model):
        for part in parts:
            yield observe(model, part.inputs)


def march_of(*models: Model) -> AbstractContextManager[March | None]:
    """Use the march that one of the models was made for, if any says so."""
    named = [name for m in models if isinstance(name := getattr(m, "march", None), str) and name]
    return march(named[-1]) if named else nullcontext()


def model_name(model: Model, name: str | None) -> str:
    """What reports call the model."""
    return name or str(getattr(model, "qtune_model_name", "") or type(model).__name__)


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Eval mode for a torch model, restored after."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    flags = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag
