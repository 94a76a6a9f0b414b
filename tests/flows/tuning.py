"""What the tests of tuning scripts share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from qtune.nn.prepared import PreparedModel
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize

RUN_FILES = {
    *("compare_per_layer_out_0.txt", "compare_per_layer_out_0.csv"),
    *("compare_per_layer_op_error_0.txt", "compare_per_layer_op_error_0.csv"),
    *("compare_per_layer_report_0.html", "op_infos"),
}
CASE_FILES = {"all_badcase_info.pt", "badcase", "badcase_report.html"}


def calibrated(net: nn.Module, *calls: tuple[Any, ...], **options: Any) -> PreparedModel:
    calib = prepare(net, calls[0], **options)
    set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for call in calls:
            calib(*call)
    set_fake_quantize(calib, FakeQuantState.VALIDATION)
    return calib


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def tables(output: str, *cases: object) -> set[str]:
    endings = ("txt", "csv", "pt")
    return {f"output_{output}_{case}_sensitive_ops.{end}" for case in cases for end in endings}
