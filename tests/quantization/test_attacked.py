"""Models that once gave wrong numbers or an unclear error, from float to integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.bpu.ort import run_in_onnxruntime
from qtune.errors import ExportError
from qtune.quantization import hbdk4

from .flow import calib, prep, run


def agreeing(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Result of the qat file (bit-equal to the model) and of the integers (equal everywhere)."""
    p = prep(model, x)
    calib(p, [x])
    qat_bc = hbdk4.export(p, x)
    fake = qat_bc[0](x)
    assert torch.equal(fake, run(hbdk4.pre_export(p), x))
    function = hbdk4.convert(qat_bc)[0]
    feed = {function.inputs[0].name: x}
    (fast,), (exact,) = (function.run(feed, mode).values() for mode in ("fast", "reference"))
    assert torch.equal(fast, exact)
    arrays = {name: value.numpy() for name, value in feed.items()}
    (by_ort,) = run_in_onnxruntime(hbdk4.convert(qat_bc), arrays).values()
    assert torch.equal(torch.from_numpy(by_ort), exact)
    return fake, fast


def hooked(register: Callable[[nn.Module], Any]) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    register(model[0])
    return model


@pytest.mark.parametrize(
    "register",
    [
        lambda conv: conv.register_forward_hook(lambda m, args, out: out * 2 + 1),
        lambda conv: conv.register_forward_pre_hook(lambda m, args: (args[0] * 0.5,)),
    ],
    ids=["result", "input"],
)
def test_a_layer_whose_hook_changes_values_stays_float_and_is_not_exported(register: Any) -> None:
    x = torch.randn(1, 3, 6, 6)
    model = hooked(register)
    p = prep(model, x)
    calib(p, [x])
    (kept,) = p.float_ops
    assert (kept.name, "hook" in kept.reason) == ("0", True)
    assert (run(p, x) - run(model, x)).abs().max() < 0.05  # one int8 fake-quantize of the relu
    with pytest.raises(ExportError, match="a forward hook of it changes"):
        hbdk4.export(p, x)


def test_a_hook_that_only_looks_changes_nothing() -> None:
    p = prep(hooked(lambda conv: conv.register_forward_hook(lambda m, a, out: None)), X)
    assert p.float_ops == ()


X = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(0))


def test_strides_of_a_weight_do_not_part_the_exported_file_from_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 3))
    agreeing(model.to(memory_format=torch.channels_last), X)


def test_a_parameter_is_concatenated_in_integers() -> None:
    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.fc = nn.Parameter(torch.full((1, 1, 8), 0.3)), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))

    fake, integer = agreeing(Token(), torch.randn(2, 5, 8))
    assert (fake - integer).abs().max() < 0.05


def test_a_transposed_convolution_may_have_one_output_channel() -> None:
    fake, integer = agreeing(nn.Sequential(nn.ConvTranspose2d(3, 1, 4, 2, 1), nn.ReLU()), X)
    assert (fake - integer).abs().max() <= 0.01 * fake.abs().max()  # one int8 step


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d], ids=["max", "avg"])
@pytest.mark.parametrize("size", [(8, 6), (9, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("padding", [0, 1])
def test_the_mean_of_a_ceil_mode_pool_divides_by_torchs_size(
    pool: Any, size: tuple[int, int], padding: int
) -> None:
    """torch drops a last window that starts in the end pad, ONNX's shape inference counts it."""

    class Pooled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return pool(x, (3, 2), 3, padding, ceil_mode=True).mean((2, 3))

    x = torch.rand(1, 4, *size, generator=torch.Generator().manual_seed(0))
    fake, integer = agreeing(Pooled(), x)
    assert (fake - integer).abs().max() <= 3 * 1.01 / 127.5  # a step each of pool, mean, input
