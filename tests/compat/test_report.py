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
    assert (name["counterpart"], name["reason"]) == (None, None)
    assert main(["compat-report", good, "--json"]) == 0
    (name,) = json.loads(capsys.readouterr().out)["result"]["names"]
    assert [name[key] for key in ("exists", "counterpart", "nearest", "reason")] == [
        *(True, "qtune.qint8"),
        *(None, None),
    ]


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


EVERYWHERE = """
import importlib
import horizon_plugin_pytorch.quantization
from hbdk4 import compiler
from hbdk4.compiler import load as hidden, save as seen
from . import hidden
from .mine import other as hidden

hidden.nothing  # the script's own
horizon_plugin_pytorch.mark = horizon_plugin_pytorch.qint8
first: horizon_plugin_pytorch.qint16 = compiler.convert
(second := compiler.compile)
print("hbdk4.nothing", importlib.import_module("hbdk4.nowhere.deep"))
importlib.import_module()
lines = [compiler.link(x) for x in seen if compiler.visualize(x)]
table = {compiler.statistics: compiler.hbm_perf for x in ()}
call = lambda x=compiler.Hbm: horizon_plugin_pytorch.get_march


@horizon_plugin_pytorch.utils.deco
class C(horizon_plugin_pytorch.March, metaclass=horizon_plugin_pytorch.nn.Meta):
    compiler = None
    compiler.nothing

    @horizon_plugin_pytorch.jit.deco
    async def g(self, *, x=horizon_plugin_pytorch.dtype.qint4, **y: compiler.nothing) -> seen:
        async for compiler_ in horizon_plugin_pytorch.quantization.QConfig:
            return compiler.load(f"{horizon_plugin_pytorch.qint32}")


try:
    import horizon_plugin_profiler as maybe
except horizon_plugin_pytorch.march.set_march:
    own = maybe = None
    own.nothing
finally:
    maybe.QuantAnalysis, horizon_plugin_pytorch.set_march


def f(*compiler, **horizon_plugin_pytorch):
    return compiler.nothing, horizon_plugin_pytorch.nothing
"""


def test_names_are_found_wherever_they_are_used(tmp_path: Path) -> None:
    report = report_of(tmp_path, EVERYWHERE)
    prefix = "horizon_plugin_pytorch"
    assert {use.name for use in report.names} == {
        *(f"hbdk4.compiler{n}" for n in ("", ".load", ".save", ".convert", ".compile", ".link")),
        *(f"hbdk4.compiler.{n}" for n in ("visualize", "statistics", "hbm_perf", "Hbm")),
        *(f"{prefix}.{n}" for n in ("qint8", "qint16", "qint32", "get_march", "March")),
        *(f"{prefix}.{n}" for n in ("utils.deco", "nn.Meta", "jit.deco", "dtype.qint4")),
        *(f"{prefix}.{n}" for n in ("quantization", "quantization.QConfig", "set_march")),
        *(f"{prefix}.march.set_march", "horizon_plugin_profiler"),
        "horizon_plugin_profiler.QuantAnalysis",
        "hbdk4.nowhere.deep",
    }
    deep = next(use for use in report.names if use.name == "hbdk4.nowhere.deep")
    assert not deep
    assert [line for _, line in deep.places] == [13]


MEMBERS = """
from os.path import *
import hbdk4
from horizon_plugin_pytorch import March, set_march
from horizon_plugin_profiler import Metric
from horizon_plugin_pytorch.quantization.qconfig import QConfig

March.zzz, March.zzz
set_march.of_a_function
Metric.get_metric, QConfig.__init__
QConfig.qqq
"""


def test_members_are_known_of_classes_only(tmp_path: Path) -> None:
    found = {use.name.rpartition("horizon_")[2]: use for use in report_of(tmp_path, MEMBERS).names}
    config = "plugin_pytorch.quantization.qconfig.QConfig"
    assert found.keys() == {
        *("hbdk4", "plugin_pytorch.March", "plugin_pytorch.March.zzz", "plugin_pytorch.set_march"),
        *("plugin_profiler.Metric", "plugin_profiler.Metric.get_metric"),
        *(config, f"{config}.__init__", f"{config}.qqq"),
    }
    assert found["hbdk4"].counterpart == "(package)"
    assert found["plugin_profiler.Metric.get_metric"].counterpart.endswith("Metric.get_metric")
    assert {name for name, use in found.items() if not use} == {
        "plugin_pytorch.March.zzz",
        f"{config}.qqq",
    }
    missing = found["plugin_pytorch.March.zzz"]
    assert [line for _, line in missing.places] == [8]  # once, though twice in the line
    assert missing.nearest.startswith("one of ")
    assert "NASH_E" in missing.nearest
