"""A18: dict, dataclass, named tuple and nested outputs."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.profiler import QuantAnalysis
from qtune.quantization.hbdk4 import convert, export

from .steps import calibrated, off, quantized_module, run, same, tensors, to_integer


@dataclass
class Out:
    boxes: Tensor
    aux: dict[str, Any]


Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024 - what users have


class Named(dict[str, Tensor]):
    """A mapping class of the user's."""


@dataclass(frozen=True)
class Frozen:
    mask: Tensor
    note: str = "x"


CASES: dict[str, tuple[Callable[[Tensor], Any], list[str]]] = {
    "dataclass": (lambda y: Out(y, {"k": (y * 2, None)}), ["boxes", "aux-k-0"]),
    "frozen": (lambda y: Frozen(y), ["mask"]),
    "namedtuple": (lambda y: Pair(y, y * 2), ["a", "b"]),
    "list of dict": (lambda y: [{"p": y}, {"p": y * 2}], ["0-p", "1-p"]),
    "dict": (lambda y: {"x": y, "n": None}, ["x"]),
    "ordered": (lambda y: OrderedDict(z=y, a=y * 2), ["z", "a"]),
    "default": (lambda y: defaultdict(list, z=y, a=y * 2), ["z", "a"]),
    "subclass": (lambda y: Named(z=y), ["z"]),
    "tuple": (lambda y: (y, (y * 2, y + 1)), ["0", "1-0", "1-1"]),
    "one of a tuple": (lambda y: (y,), ["0"]),
    "tensor": (lambda y: y, [""]),
}


class Model(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.conv, self.wrap = nn.Conv2d(3, 4, 1), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.conv(x))


@pytest.mark.parametrize("case", CASES)
def test_the_type_of_the_output_is_kept(case: str, tmp_path: Path) -> None:
    """A18 in the prepared model, in both .bc files and after loading them."""
    wrap, names = CASES[case]
    model, x = Model(wrap).eval(), torch.randn(2, 3, 4, 4)
    p = calibrated(model, x)
    expected = run(model, x)
    assert type(run(p, x)) is type(expected)
    (integer,) = to_integer(p, x)
    assert type(integer) is type(expected)
    assert len(tensors(integer)) == len(names)
    path = tmp_path / "model.bc"
    compiler.save(quantized_module(p, x), path)
    loaded = compiler.load(path)[0](x)
    assert type(loaded) is type(expected)
    assert all(map(same, tensors(loaded), tensors(integer)))
    off(p)
    assert all(map(torch.equal, tensors(run(p, x)), tensors(expected)))


def test_what_is_no_tensor_stays_in_its_place() -> None:
    """A18 None and strings beside the tensors."""
    x = torch.randn(2, 3, 4, 4)
    p = calibrated(Model(CASES["dataclass"][0]), x)
    for out in (run(p, x), to_integer(p, x)[0]):
        assert isinstance(out, Out)
        assert out.aux["k"][1] is None
        assert list(out.aux) == ["k"]
    p = calibrated(Model(CASES["frozen"][0]), x)
    for out in (run(p, x), to_integer(p, x)[0]):
        assert isinstance(out, Frozen)
        assert out.note == "x"


@pytest.mark.parametrize("case", ["dataclass", "namedtuple", "list of dict", "tuple", "tensor"])
def test_the_analysis_names_outputs_by_their_path(case: str, tmp_path: Path) -> None:
    """A18 stable, dash-joined names; None is skipped."""
    wrap, names = CASES[case]
    model, x = Model(wrap).eval(), torch.randn(2, 3, 4, 4)
    p = calibrated(model, x)
    analysis = QuantAnalysis(model, p, "fake_quant", out_dir=str(tmp_path))
    report = analysis.auto_find_bad_case([x, torch.randn(2, 3, 4, 4)])
    assert list(report.output_to_badcase_info) == names


def test_every_stage_has_the_same_names(tmp_path: Path) -> None:
    """A18 qat.bc against quantized.bc."""
    wrap, names = CASES["dataclass"]
    x = torch.randn(2, 3, 4, 4)
    p = calibrated(Model(wrap), x)
    qat = export(p, x)
    analysis = QuantAnalysis(qat, convert(qat), "convert", out_dir=str(tmp_path))
    report = analysis.auto_find_bad_case([x])
    assert list(report.output_to_badcase_info) == names
