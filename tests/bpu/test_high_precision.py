"""Every operator with a multiplier on 31 bits: three equal runs, close to the float form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.bpu.compiler import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType
from qtune.hbir.export import export
from qtune.hbir.module import META_CONSISTENCY, META_HIGH_PRECISION
from qtune.ops import registry
from qtune.ops.spec import Rule
from tests.bpu.test_every_operator import NAMES, Case, _given_on_nash

COARSE = ("deform_conv2d",)
"""Its sampling positions have 8 fraction bits, which no multiplier makes finer."""

SCALED = [name for name in NAMES if registry.spec(name).rule is Rule.OWN_SCALE]


@pytest.mark.parametrize(
    ("name", "out"), [(name, _given_on_nash(name)[-1]) for name in SCALED], ids=str
)
def test_long_multipliers_give_the_same_bits_on_every_path(name: str, out: QuantDType) -> None:
    """Consistency level 0, so that a GEMM's accumulator comes out as well."""
    case = Case.draw(registry.spec(name), seed=NAMES.index(name))
    p = case.prepared(out)
    qat = export(p, tuple(case.inputs))
    qat.model.metadata_props.update({META_CONSISTENCY: "0", META_HIGH_PRECISION: "1"})
    module = convert(qat, "nash-e")
    feed = {item.name: x for item, x in zip(module[0].inputs, case.inputs, strict=True)}
    fast, reference = module[0].run(feed), module[0].run(feed, mode="reference")
    runtime = run_in_onnxruntime(module, {key: x.numpy() for key, x in feed.items()})
    real = qat[0].run(feed)
    scale = float(p.get_submodule("op").activation_post_process.scale)
    for key, value in fast.items():
        assert torch.equal(value, reference[key])
        assert np.array_equal(value.numpy(), runtime[key])
        # numerics.md section 3: 1 step, 2 for int16 sums and conv groups (a bias is rounded on the
        # accumulator's grid); and the last bits of float32 codes times scale
        steps = 1.001 if out.bits == 8 else 2.001
        assert name in COARSE or float((value - real[key]).abs().max()) <= steps * scale
