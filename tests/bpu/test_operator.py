"""One operator alone: the same codes as inside the whole, and clear errors."""

from __future__ import annotations

import pytest
import torch

from qtune.bpu.compiler import convert
from qtune.errors import ArgumentError, NonFiniteError, RunError
from qtune.hbir.export import export
from tests.bpu.test_run import residual_net
from tests.hbir.prepared import small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", [small_cnn, residual_net])
@pytest.mark.parametrize("stage", ["qat", "quantized"])
def test_operator_alone_gives_what_it_gives_inside(make, stage):
    module = export(make(X), X)
    if stage == "quantized":
        module = convert(module, "nash-e")
    seen = {}
    module[0].run({"_input_0": X}, observe=seen.__setitem__)
    groups = module[0].groups()

    for name in module[0].operator_names():
        runner = module[0].extract_operator(name)
        inputs = {key: X if key == "_input_0" else seen[key].values for key in runner.inputs}
        result, expected = runner(inputs), seen[groups[name]]
        assert torch.equal(result.values, expected.values), name
        assert result.scale == expected.scale
        if expected.codes is not None:
            assert torch.equal(result.codes, expected.codes)


def test_member_of_a_fused_group_stands_for_the_group():
    module = convert(export(small_cnn(X), X), "nash-e")

    assert module[0].extract_operator("conv1").inputs == {"x_quant": (2, 3, 8, 8)}


def test_float_input_is_put_on_the_grid():
    module = convert(export(small_cnn(X), X), "nash-e")
    runner = module[0].extract_operator("add1")
    values = torch.randn(2, 8, 4, 4) * 0.1

    once = runner({"conv2": values})
    scale = module[0].extract_operator("conv2")({"relu1": torch.rand(2, 8, 8, 8)}).scale
    again = runner({"conv2": torch.floor(values / scale + 0.5) * scale})

    assert torch.equal(once.codes, again.codes)


def test_operator_runs_other_batch_sizes_where_the_module_does():
    module = convert(export(small_cnn(X), X), "nash-e")
    runner = module[0].extract_operator("relu1")

    assert runner({"x_quant": torch.randn(5, 3, 8, 8)}).values.shape == (5, 8, 8, 8)


def test_nan_is_refused_with_operator_and_input():
    runner = convert(export(small_cnn(X), X), "nash-e")[0].extract_operator("relu1")

    with pytest.raises(NonFiniteError, match="'relu1', input 'x_quant'"):
        runner({"x_quant": X * float("nan")})


def test_misuse_is_named():
    module = convert(export(small_cnn(X), X), "nash-e")
    with pytest.raises(ArgumentError, match="no operator 'nothing'.*relu1"):
        module[0].extract_operator("nothing")
    runner = module[0].extract_operator("conv1")
    with pytest.raises(RunError, match="takes the results of"):
        runner({"other": X})
    with pytest.raises(RunError, match=r"'x_quant' must be a tensor \(2, 3, 8, 8\)"):
        runner({"x_quant": X[:, :2]})
