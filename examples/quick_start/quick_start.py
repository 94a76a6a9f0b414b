"""Find the operator to blame: structure check, bad case, per-layer comparison, sensitivity, tuning.

The steps of the quick start in the toolchain's tuning document; only the import roots differ.
Run it: ``python quick_start.py OUT_DIR``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qtune import qint8, set_march
from qtune.profiler import QuantAnalysis
from qtune.profiler.utils.entities import Metric
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    QuantStub,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization import hbdk4 as hb4
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
)


class Net(nn.Module):
    """Point-wise convolution, relu, and a resize by a fraction."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU()
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(self.quant(x)))
        x = nn.functional.interpolate(x, scale_factor=1.3, mode="bilinear", align_corners=False)
        return self.dequant(x)


def calibrated(float_net: nn.Module, data: Tensor) -> nn.Module:
    """Prepare (which also checks the structure) and calibrate."""
    templates = [ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate()]
    calib_net = prepare(float_net, data, qconfig_setter=QconfigSetter(get_qconfig(), templates))
    set_fake_quantize(calib_net.eval(), FakeQuantState.CALIBRATION)
    calib_net(data)
    set_fake_quantize(calib_net.eval(), FakeQuantState.VALIDATION)
    return calib_net


def analyse(baseline: Any, analysed: Any, kind: str, data: Tensor, out_dir: Path) -> QuantAnalysis:
    """Compare two models layer by layer on one bad case."""
    analysis = QuantAnalysis(
        baseline_model=baseline,
        analysis_model=analysed,
        analysis_model_type=kind,
        device_ids=0,
        out_dir=str(out_dir),
    )
    analysis.set_bad_case(data)
    analysis.run()
    analysis.compare_per_layer()
    return analysis


def main(out_dir: Path) -> None:
    torch.manual_seed(0)
    set_march("nash-e")
    data = torch.rand((1, 3, 32, 32))
    float_net = Net().eval()
    calib_net = calibrated(float_net, data)
    qat_hbir = hb4.export(calib_net, (data,))

    analysis = analyse(float_net, calib_net, "fake_quant", data, out_dir / "floatvsqat")
    analysis.sensitivity(use_sensitivity_v2=True)
    analysis.tune_bad_case(
        outputs_config={"": {"metric": Metric.ATOL, "threshold": 0.2, "max_tuned_stubs": 10}}
    )
    analyse(calib_net, qat_hbir, "export", data, out_dir / "qatvshbir")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "quick_start_results"))
