"""``qtune compat-report``: which toolchain names a script uses, found without running it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qtune.cli import main
from qtune.compat.report import CompatReport, compat_report
from qtune.errors import ArgumentError

GOOD = """
import importlib
import torch
import horizon_nn.debug as dbg
import horizon_plugin_pytorch as horizon
from hbdk4.compiler import load as open_bc
from horizon_plugin_profiler.utils.entities import Metric
from horizon_plugin_pytorch.quantization import hbdk4 as hb4, qconfig
from horizon_plugin_pytorch.quantization.qconfig_setter import *

horizon.march.set_march(horizon.march.March.Bayes)
hb4.export(None, ())
Metric.my_loss  # registered at run time
model = torch.quantization.QuantStub()
setter = QconfigSetter(None, [])
importlib.import_module("horizon_plugin_pytorch.jit")


def f(hb4):
    qconfig = hb4.whatever  # both are the script's own here
    return qconfig.other


class C:
    from horizon_plugin_pytorch import qint8

    def g(self):
        return qconfig.get_default_qconfig()
"""


def report_of(tmp_path: Path, text: str) -> CompatReport:
    path = tmp_path / "script.py"
    path.write_text(text)
    return compat_report([path])


def test_names_are_followed_through_aliases_and_scopes(tmp_path: Path) -> None:
    report = report_of(tmp_path, GOOD)
    assert report
    found = {use.name: use.counterpart for use in report.names}
    assert found == {
        "hbdk4.compiler.load": "qtune.bpu.compiler.load",
        "horizon_nn.debug": "qtune.onnx_debug",
        "horizon_plugin_profiler.utils.entities.Metric": "qtune.profiler.utils.entities.Metric",
        "horizon_plugin_pytorch": "qtune",
        "horizon_plugin_pytorch.jit": "qtune.jit",
        "horizon_plugin_pytorch.march.March.Bayes": "qtune.march.March.Bayes",
        "horizon_plugin_pytorch.march.set_march": "qtune.march.set_march",
        "horizon_plugin_pytorch.qint8": "qtune.qint8",
        "horizon_plugin_pytorch.quantization.hbdk4": "qtune.quantization.hbdk4",
        "horizon_plugin_pytorch.quantization.hbdk4.export": "qtune.quantization.hbdk4.export",
        "horizon_plugin_pytorch.quantization.qconfig": "qtune.quantization.qconfig",
        "horizon_plugin_pytorch.quantization.qconfig.get_default_qconfig": (
            "qtune.quantization.qconfig.get_default_qconfig"
        ),
        "horizon_plugin_pytorch.quantization.qconfig_setter": "qtune.quantization.qconfig_setter",
        "horizon_plugin_pytorch.quantization.qconfig_setter.QconfigSetter": (
            "qtune.quantization.qconfig_setter.QconfigSetter"
        ),
        "torch.quantization.QuantStub": "torch.quantization.QuantStub",
    }


BAD = """
import horizon_plugin_pytorch as horizon
import hmct.api as hmct
from horizon_plugin_pytorch.quantization.qconfig_setter import PropagateTemplate
from horizon_plugin_pytorch import March
import hat
from torch.quantization import FloatFunctional

March.NASH_X
horizon.quantization.prepare_qatt(None)
horizon.quantization.prepare_qatt(None)
hmct.infer_shapes(None)
horizon.quantization.ok_then.deeper.still
"""


def test_what_is_missing_comes_with_lines_and_the_nearest(tmp_path: Path) -> None:
    report = report_of(tmp_path, BAD)
    assert not report
    prefix = "horizon_plugin_pytorch"
    assert {use.name: use.nearest for use in report.missing if "ok_then" not in use.name} == {
        "hat": "a training script of your own",
        "hmct.api.infer_shapes": "onnx.shape_inference",
        f"{prefix}.March.NASH_X": f"{prefix}.March.NASH_P",
        f"{prefix}.quantization.prepare_qatt": f"{prefix}.quantization.prepare_qat",
        f"{prefix}.quantization.qconfig_setter.PropagateTemplate": (
            "qconfig_setter.ModuleNameTemplate"
        ),
    }
    assert f"{prefix}.quantization.ok_then" in {use.name for use in report.missing}
    twice = next(use for use in report.missing if use.name.endswith("prepare_qatt"))
    assert [line for _, line in twice.places] == [10, 11]
    ours = next(use for use in report.names if use.name.endswith("FloatFunctional"))
    assert ours.counterpart == "qtune.quantization.FloatFunctional"  # torch has none


def test_the_command_fails_for_a_missing_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.py").write_text("from horizon_plugin_pytorch import qint8\n")
    (tmp_path / "bad.py").write_text("from horizon_plugin_pytorch import qint9\n")
    good, bad = str(tmp_path / "good.py"), str(tmp_path / "bad.py")
    assert main(["compat-report", good]) == 0
    assert "1 of 1 names exist" in capsys.readouterr().out
    assert main(["compat-report", good, bad]) == 1
    text = capsys.readouterr().out
    assert "MISSING, nearest: horizon_plugin_pytorch.qint8" in text
    assert f"{bad}:1" in text
    assert main(["compat-report", bad, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    (name,) = data["result"]["names"]
    assert name["exists"] is False
    assert name["nearest"] == "horizon_plugin_pytorch.qint8"
    assert name["places"] == [{"file": bad, "line": 1}]


def test_a_script_without_the_toolchain_uses_nothing(tmp_path: Path) -> None:
    report = report_of(tmp_path, "import torch\ntorch.rand(3)\n")
    assert report
    assert not report.names


@pytest.mark.parametrize("text", [None, "x = ("])
def test_what_can_not_be_read_is_one_error(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ArgumentError, match=f"can't read {path}"):
        compat_report([path])


LATER = """
from horizon_plugin_pytorch.quantization import qconfig, qconfig as loop

try:
    import hbdk4.compiler as compiler
except ImportError:
    compiler = None


def run(*models: qconfig.QConfig):
    compiler.load("x")
    late.prepare(None)
    return qconfig.get_default_qconfig()


rows = [qconfig.name for qconfig in [1]], {qconfig: qconfig.x for qconfig in [2]}
qconfig.get_qconfig  # a comprehension's own names end with it
for loop in loop.default_qat_8bit_fake_quant_qconfig, 3:
    loop.whatever

if __name__ == "__main__":
    import horizon_plugin_pytorch.quantization as late

    run()
"""


def test_names_are_read_as_python_binds_them(tmp_path: Path) -> None:
    report = report_of(tmp_path, LATER)
    assert report
    prefix = "horizon_plugin_pytorch.quantization"
    assert {use.name.removeprefix(prefix) for use in report.names} == {
        *("", ".prepare", ".qconfig", ".qconfig.QConfig", ".qconfig.get_qconfig"),
        *(".qconfig.get_default_qconfig", ".qconfig.default_qat_8bit_fake_quant_qconfig"),
        *("hbdk4.compiler", "hbdk4.compiler.load"),
    }


def test_a_module_of_the_users_own_is_not_the_toolchains(tmp_path: Path) -> None:
    text = "import plot_opinfo\nfrom find_bad_case import main\nfrom . import hbdk4\nhbdk4.x\n"
    assert not report_of(tmp_path, text).names
