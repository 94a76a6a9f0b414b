"""A model made of one operator, drawn by the operator's own sampler, through the whole line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.ops.spec import OpSpec
from qtune.testing.fuzzing.line import calibrated, converted, output_steps, prepared_model
from qtune.testing.fuzzing.model import Model, Operator, flat, is_finite
from qtune.testing.fuzzing.operands import slots

__all__ = ["Line", "build", "flat", "prepared_model", "run_everywhere", "run_line"]


@dataclass(frozen=True)
class Line:
    """A prepared model, its results and those of the integer module on the same input.

    ``steps``: scale of each result, ``None`` for masks, integers and what is not quantized.
    """

    prepared: PreparedModel
    fake: list[Tensor]
    integer: list[Tensor]
    steps: Sequence[float | None]

    def distances(self) -> list[tuple[float, bool]]:
        """Largest distance of each result, and whether it is counted in steps."""
        found = []
        for left, right, step in zip(self.fake, self.integer, self.steps, strict=True):
            assert left.dtype == right.dtype
            assert left.shape == right.shape
            gap = (left.double() - right.double()).abs().max().item() if left.numel() else 0.0
            found.append((gap / (step or 1.0), step is not None))
        return found


def build(entry: OpSpec, seed: int) -> tuple[Model, tuple[Tensor, ...]]:
    """A model and inputs on which its result is finite."""
    assert entry.sample is not None
    rng = np.random.default_rng(seed)
    sample = entry.sample(rng)
    wanted = slots(entry, sample)
    operands = [slot.draw(rng) if slot.is_owned else None for slot in wanted]
    model = Model(Operator(entry, wanted, operands, sample.attrs)).eval()
    for positive in (False, True):
        again = np.random.default_rng(seed)
        data = tuple(slot.draw(again, positive=positive) for slot in wanted if slot.is_input)
        if is_finite(model(*data)):
            break
    return model, data


def run_line(
    model: Model, calibration: tuple[Tensor, ...], data: tuple[Tensor, ...], dtype: QuantDType
) -> Line:
    """Prepare, calibrate, validate, export, convert, run; the three integer runs agree."""
    prepared = calibrated(model, calibration, dtype)
    with torch.no_grad():
        fake = flat(prepared(*data))
    module = converted(prepared, calibration)
    return Line(prepared, fake, run_everywhere(module, data), output_steps(prepared))


def run_everywhere(module: HbirModule, data: Sequence[Tensor]) -> list[Tensor]:
    """Results of the fast kernels, after NumPy and ONNX Runtime gave the same bits."""
    function = module[0]
    feed = {item.name: x for item, x in zip(function.inputs, data, strict=True)}
    fast, exact = function.run(feed), function.run(feed, "reference")
    by_ort = run_in_onnxruntime(module, {key: x.numpy() for key, x in feed.items()})
    for name, value in fast.items():
        assert torch.equal(value, exact[name]), f"{name}: fast and reference differ"
        np.testing.assert_array_equal(by_ort[name], exact[name].numpy(), err_msg="ONNX Runtime")
    return [fast[item.name] for item in function.outputs]
