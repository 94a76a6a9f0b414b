"""What a build gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from qtune.hbir.module import HbirModule
from qtune.march import March
from qtune.onnx_debug.build.node_info import NodeInfo


@dataclass(frozen=True, slots=True, eq=False)
class BuildResult:
    """All stages of a build (what ``build_model(return_builder=True)`` returns).

    ``original``: as it came; ``optimized``: the float model that was calibrated; ``calibrated``:
    that with calibration nodes; ``qat``: the calibrated one as an HBIR module; ``quantized``: the
    integers. ``info``: what ``quant_info.json`` holds. ``nodes``: the rows of
    ``node_info.csv``. ``files``: what was written.
    """

    march: March
    original: onnx.ModelProto
    optimized: onnx.ModelProto
    calibrated: onnx.ModelProto
    qat: HbirModule
    quantized: HbirModule
    info: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[NodeInfo, ...] = ()
    files: tuple[Path, ...] = ()

    def with_files(self, files: Sequence[Path]) -> BuildResult:
        """The same with the paths of what was written."""
        return replace(self, files=tuple(files))

    def summary(self, *, with_files: bool = True) -> str:
        """What was chosen, what each output loses, what stays float and why."""
        calibration = self.info["calibration"]
        lines = [f"march: {self.march}", f"calibration: {_method(calibration)}"]
        if self.info["kept"]:
            lines.append(f"kept as the file has them: grids of {len(self.info['kept'])} tensors")
        lines += [
            f"  {name}: {calibration['metric']} {loss:.6f}"
            for name, loss in calibration["losses"].items()
        ]
        for name, row in self.info["outputs"].items():
            cosines = ", ".join(f"{stage} {value:.6f}" for stage, value in row.items())
            lines.append(f"output {name}: cosine similarity {cosines}")
        if self.info.get("parts"):
            count = sum(map(len, self.info["parts"].values()))
            lines.append(f"in parts: {len(self.info['parts'])} operator(s), {count} nodes")
        for title, key in (("stays float", "stays_float"), ("int8, not int16", "int16_refused")):
            lines += [f"{title}: {name}: {why}" for name, why in self.info[key].items()]
        if with_files:
            lines += [f"written: {path}" for path in self.files]
        return "\n".join(lines)


def _method(calibration: Mapping[str, Any]) -> str:
    method, level = calibration["method"], calibration["chosen_by"]
    if not method:
        if level == "file":
            return "none, all grids are the file's"
        return "none, no threshold is left to find"
    text = method if isinstance(method, str) else "one of its own for each tensor"
    return f"{text} ({level})"
