"""What prepare, export and convert say about what was not done as asked, and where it stands."""

from __future__ import annotations

import inspect
import logging

import pytest
import torch
from torch import Tensor, nn

from qtune import march
from qtune.bpu import compiler
from qtune.dtype import qint16
from qtune.errors import ConvertError, ExportError
from qtune.quantization import QconfigSetter, get_qconfig
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .flow import calib, prep


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fuse = nn.Sequential()
        self.fuse.add_module("conv", nn.Conv2d(3, 4, 1))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fuse(x))


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cumprod(self.block(x), 1)
        return torch.logcumsumexp(y, 1)


X = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def setter(**rules: object) -> QconfigSetter:
    names = {name.replace("_", "."): value for name, value in rules.items()}
    return QconfigSetter(get_qconfig(), [ModuleNameTemplate(names)])


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)


def test_a_rule_that_decides_nothing_is_a_warning_with_close_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prep(Block(), X, qconfig_setter=setter(fuze_conv=qint16))
    text = warnings(caplog)
    assert "1 rule(s) of the qconfig decided nothing" in text
    assert "ModuleNameTemplate 'fuze.conv' output" in text
    assert "close: fuse.conv" in text
    assert {r.name.partition(".")[0] for r in caplog.records} == {"qtune"}


def test_a_dtype_that_the_march_refuses_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with march.march("bernoulli2"):
        prep(Block(), X, qconfig_setter=setter(act=qint16))
    text = warnings(caplog)
    assert "1 dtype(s) are not the asked ones: act output: asked qint16, given qint8" in text


def test_nothing_is_a_warning_where_all_is_as_asked(caplog: pytest.LogCaptureFixture) -> None:
    prep(Block(), X, qconfig_setter=setter(act=qint16))
    assert not warnings(caplog)


def line_of(function: object, text: str) -> str:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return f"test_messages.py:{first + next(i for i, s in enumerate(lines) if text in s)}"


def test_what_stays_float_and_what_is_not_exported_names_its_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "qtune")
    p = prep(Odd(), X)
    by_op = {item.op: item for item in p.float_ops}
    item = by_op["torch.cumprod"]
    assert item.source == line_of(Odd.forward, "cumprod")
    assert f"{item.name} (torch.cumprod) ({item.source}) stays float" in caplog.text
    calib(p, [X])
    with pytest.raises(ExportError, match=rf"{item.name} .*\({item.source}\): no operator"):
        export(p, X)


def test_convert_names_the_line_of_the_model() -> None:
    p = prep(Block(), X, qconfig_setter=setter(act=qint16))
    calib(p, [X])
    line = line_of(Block.forward, "act")
    with pytest.raises(ConvertError, match=rf"fuse.conv \({line}, in fuse\): "):
        compiler.convert(export(p, X), "bernoulli2")


class Factors(nn.Module):
    """An operator without integer form that gives two tensors."""

    def forward(self, x: Tensor) -> Tensor:
        q, r = torch.linalg.qr(torch.relu(x))
        return q @ r


def test_operators_with_several_results_are_named_by_export() -> None:
    x = torch.randn(2, 5, 5)
    p = prep(Factors(), x)
    assert "torch.linalg.qr" in [item.op for item in p.float_ops]
    calib(p, [x])
    with pytest.raises(ExportError, match=r"torch.linalg.qr.*no operator of the registry"):
        export(p, x)
