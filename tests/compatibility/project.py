"""The project of a team, as files: a model, its tests, and what a run of them gives everywhere."""

from __future__ import annotations

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.conv(x))


def batches():
    return [torch.linspace(-1, 1, 2 * 3 * 36).reshape(2, 3, 6, 6) * k for k in (1.0, 2.0)]


def holdout(size):
    return torch.rand(size, 3, 6, 6, generator=torch.Generator().manual_seed(size))


def two():
    return holdout(2)
"""

TESTS = """
import net
import pytest
from pytest_qtune import assert_bit_exact, assert_consistency, assert_no_shared_ops


@pytest.fixture(scope="session")
def stages(qtune_stages):
    return qtune_stages(net.Net, net.batches, march="nash-e")


@pytest.mark.xdist_group("structure")
def test_structure(stages):
    assert_no_shared_ops(stages.calib)


class TestIntegers:
    @pytest.mark.xdist_group("integers")
    @pytest.mark.parametrize("size", [1, 3])
    def test_steps(self, stages, size):
        assert_consistency(
            stages.qat_bc, stages.quantized_bc, inputs=net.holdout(size), max_qscale_diff=1
        )

    def test_kernels(self, stages):
        assert_bit_exact(stages.quantized_bc, inputs=net.holdout(2), against="reference")


@pytest.mark.xdist_group("too strict")
def test_too_strict(stages):
    assert_consistency(
        stages.float, stages.quantized_bc, inputs=net.holdout(2), min_sqnr_db=500
    )


def test_expected_failure(stages):
    with pytest.raises(AssertionError, match="limit >= 500"):
        assert_consistency(
            stages.float, stages.quantized_bc, inputs=net.holdout(2), min_sqnr_db=500
        )


class TestAccuracy:
    def test_top1(self, qtune_baseline):
        qtune_baseline.check("top1", 0.9, max_drop=0.005)


def test_without_qtune():
    pass
"""

GATE_FILE = """
[model]
factory = "net:Net"
march = "nash-e"
calibration = "net:batches"
inputs = "net:two"

[[check]]
kind = "no_shared_ops"

[[check]]
kind = "consistency"
from = "float"
to = "quantized_bc"
min_sqnr_db = 500
"""

INI = """
[pytest]
filterwarnings = error
markers =
    xdist_group: known where xdist is not, too
qtune_gates =
    Net: sqnr_db >= 10
    Net: max_qscale_diff < 0
"""

FILES = {"net.py": NET, "test_net.py": TESTS, "net.qtune.toml": GATE_FILE, "pytest.ini": INI}

OUTCOMES = {"passed": 9, "failed": 3}
"""What pytest counts: tests, items of the gate file, gates."""

CHECKS = {
    "net.qtune.toml::consistency[float-quantized_bc]": ("consistency", False),
    "net.qtune.toml::no_shared_ops[calib]": ("no_shared_ops", True),
    "test_net.py::TestAccuracy::test_top1": ("baseline", True),
    "test_net.py::TestIntegers::test_kernels": ("bit_exact", True),
    "test_net.py::TestIntegers::test_steps[1]": ("consistency", True),
    "test_net.py::TestIntegers::test_steps[3]": ("consistency", True),
    "test_net.py::test_expected_failure": ("consistency", False),
    "test_net.py::test_structure": ("no_shared_ops", True),
    "test_net.py::test_too_strict": ("consistency", False),
}
"""The checks of the run by their tests, whatever the mode: kind, and whether it held."""

GATES = {"qtune-gate::Net[max_qscale_diff]": "failed", "qtune-gate::Net[sqnr_db]": "passed"}
"""The gates of the run."""

TOTALS = {"checks": 9, "failed": 2, "caught": 1, "gates": 2, "gates_failed": 1}
"""Of the JSON report."""

ARTEFACTS = 3
"""calib.pt, qat.bc, quantized.bc; the gate file's model is the same one."""

CHECK = """
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult


def check(ok, model):
    got = "0.2" if ok else "0.5"
    conclude(AssertionResult("consistency", model, ok, "head", got, "<= 0.3", {"atol": float(got)}))
"""
"""A check whose result is known, of a model of any name."""
