"""``dump_calibration_data``: the data of a calibration as the debugger reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qtune.onnx_debug.data import CalibrationDataSet
from qtune.report.files import atomic_path

FOLDER = "calibration_data"


def dump_data(data: CalibrationDataSet, folder: Path) -> Path:
    """Write ``<folder>/calibration_data/<input>/<i>.npy``; return that folder."""
    target = folder / FOLDER
    for index, item in enumerate(data):
        for name, array in item.items():
            with atomic_path(target / name / f"{index}.npy") as partial:
                np.save(partial, array)
    return target
