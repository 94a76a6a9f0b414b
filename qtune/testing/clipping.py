"""How much of what comes to each port its range clips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from qtune.analysis.ablation import AnyPort, CastPort, Transform, switched_on
from qtune.arith.quantize import in_range
from qtune.capture.inputs import Inputs, naming
from qtune.nn.float_mode import all_float
from qtune.nn.prepared import PreparedModel
from qtune.profiler.observe import run_model
from qtune.profiler.undisturbed import same_randomness, undisturbed
from qtune.report.progress import progress


@dataclass(slots=True)
class Tally:
    """Values that came to one port over all inputs. ``shape``: of the first; ``reach``: the largest
    finite magnitude."""

    shape: tuple[int, ...] | None = None
    clipped: int = 0
    count: int = 0
    reach: float = 0.0

    def add(self, shape: tuple[int, ...], clipped: int, count: int) -> None:
        """Count some more."""
        self.shape = shape if self.shape is None else self.shape
        self.clipped += clipped
        self.count += count

    def __str__(self) -> str:
        return f"{self.clipped} of {self.count}"

    @property
    def share(self) -> float:
        """Clipped ones among all, 0 to 1."""
        return self.clipped / self.count if self.count else 0.0


def clipping(
    model: PreparedModel, ports: Sequence[AnyPort], inputs: Iterable[Inputs]
) -> dict[str, Tally]:
    """By port name what comes to ``ports`` while ``model`` computes in float on ``inputs``.

    A real value counts as clipped where it lies outside of ``qmin`` to ``qmax`` by half a step or
    more (``in_range``, numerics.md section 1), at a float16 port where it becomes infinite. NaN
    counts too: no code stands for it. The model stays as it is.
    """
    found = {port.name: Tally() for port in ports}
    with undisturbed(model), all_float(model), ExitStack() as stack:
        for port in ports:
            stack.enter_context(switched_on(port, _counting(port, found[port.name])))
        for index, item in enumerate(progress(list(inputs), "run", unit="batch")):
            with naming(f"batch {index} of inputs", item), same_randomness(model):
                run_model(model, item)
    return found


def _counting(port: AnyPort, tally: Tally) -> Transform:
    def count(x: Tensor) -> Tensor:
        values = x.detach()
        inside = _inside(port, values)
        tally.add(tuple(values.shape), inside.numel() - int(inside.sum()), inside.numel())
        finite = values[values.isfinite()].abs()
        if finite.numel():
            tally.reach = max(tally.reach, float(finite.max()))
        return x

    return count


def _inside(port: AnyPort, values: Tensor) -> Tensor:
    """Which elements are not clipped."""
    if isinstance(port, CastPort):
        return values.half().isfinite()
    quantizer = port.fake_quantize
    numbers, scale = values.float().cpu().numpy(), quantizer.scale.detach().cpu().numpy()
    return torch.from_numpy(in_range(numbers, scale, quantizer.dtype, quantizer.ch_axis))
