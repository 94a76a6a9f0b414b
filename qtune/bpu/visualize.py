"""visualize: a module as a standard ONNX file for Netron or any other viewer."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import onnx

from qtune.bpu.hbm import Program
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.report.files import write_with


def visualize(
    m: HbirModule | Program,
    onnx_file: str | Path | None = None,
    use_netron: bool = False,
    host: str | None = None,
    port: int | None = None,
    save_as_external_data: bool = False,
    external_data_file: str | None = None,
) -> Path:
    """Write a module as an ONNX file and return its path.

    The operators of the domain ``qtune`` stay nodes of their own, their function bodies of standard
    operators come with the file: Netron opens them by double click, and ONNX Runtime runs the file.
    ``onnx_file``: default ``<function>.onnx`` in the working directory. ``save_as_external_data``
    puts the weights into ``external_data_file`` (a name beside the file; default
    ``<onnx_file>.data``). ``use_netron`` serves the file on ``host`` and ``port`` with the package
    netron, which must be installed. Of a program with several functions the first is shown.
    """
    if not isinstance(m, (HbirModule, Program)):
        raise ArgumentError(f"visualize takes a module or a program, got {m!r}")
    function = m[0]
    target = Path(f"{function.name}.onnx" if onnx_file is None else onnx_file)
    if target.suffix != ".onnx":
        raise ArgumentError(f"visualize: {target}: expected a file with the suffix .onnx")
    if external_data_file is not None and not save_as_external_data:
        raise ArgumentError(
            "visualize: external_data_file has no effect without save_as_external_data=True"
        )
    if not use_netron and (host is not None or port is not None):
        raise ArgumentError("visualize: host and port have no effect without use_netron=True")
    netron = _netron() if use_netron else None
    proto = onnx.load_model_from_string(HbirModule(function.model).to_bytes())
    if save_as_external_data:
        _save_external(proto, target, external_data_file or f"{target.name}.data")
    else:
        data = proto.SerializeToString()
        write_with(target, lambda partial: partial.write_bytes(data))
    if netron is not None:
        address = (host or "localhost", port) if host is not None or port is not None else None
        netron.start(str(target), address=address)
    return target


def _netron() -> Any:
    try:
        return importlib.import_module("netron")
    except ImportError:
        raise ArgumentError(
            "visualize: use_netron=True needs the package netron: pip install netron, or open the "
            ".onnx file in any viewer"
        ) from None


def _save_external(proto: onnx.ModelProto, target: Path, name: str) -> None:
    if Path(name).name != name:
        raise ArgumentError(
            f"visualize: external_data_file={name!r} must be a name without folders; the weights "
            "lie beside the .onnx file"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".visualize-") as folder:
        draft = Path(folder) / target.name
        onnx.save_model(proto, draft, save_as_external_data=True, location=name, size_threshold=0)
        weights = Path(folder) / name
        if weights.exists():
            weights.replace(target.parent / name)
        draft.replace(target)
