"""The files of a build, each written whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper

from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import source as files
from qtune.report.files import atomic_path, check_folder, write_text

LARGEST = 1 << 30
"""Models beyond this many bytes have their weights in a file beside them (protobuf: 2 GB)."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the files of a build go: ``<prefix>_<what>``. ``prefix``: folder and first part."""

    prefix: Path

    @classmethod
    def of(cls, prefix: str | os.PathLike[str] | None, default: str) -> Target:
        """``prefix`` or ``default``; a text that ends with a slash is a folder."""
        if prefix is not None and not (isinstance(prefix, (str, os.PathLike)) and str(prefix)):
            raise ArgumentError(
                "name_prefix: expected a folder and the first part of the files' names, such as "
                f"'build/net'; got {prefix!r}"
            )
        given = default if prefix is None else os.fspath(prefix)
        if given.endswith(("/", os.sep)) or Path(given).is_dir():
            given = str(Path(given) / default)
        target = cls(Path(given))
        check_folder(target.prefix.parent, "name_prefix")
        return target

    def path(self, name: str) -> Path:
        """The path of one file."""
        return self.prefix.with_name(f"{self.prefix.name}_{name}")

    def model(self, name: str, proto: onnx.ModelProto) -> Path:
        """Write a model; ``proto`` stays as it is."""
        path = self.path(f"{name}.onnx")
        save_model(proto, path)
        return path

    def module(self, name: str, module: HbirModule) -> Path:
        """Write an HBIR module."""
        path = self.path(f"{name}.bc")
        with atomic_path(path) as partial:
            partial.write_bytes(module.to_bytes())
        return path

    def text(self, name: str, text: str) -> Path:
        """Write a text file."""
        return write_text(self.path(name), text)


def save_model(proto: onnx.ModelProto, path: Path) -> None:
    """Write ``proto``; a large one with its weights in ``<path>.data``."""
    if proto.ByteSize() <= LARGEST:
        with atomic_path(path) as partial:
            partial.write_bytes(proto.SerializeToString())
        return
    data = path.with_name(f"{path.name}.data")
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    with atomic_path(data) as partial:
        _move_weights(copy, partial, data.name)
    with atomic_path(path) as partial:
        partial.write_bytes(copy.SerializeToString())


def _move_weights(proto: onnx.ModelProto, path: Path, name: str) -> None:
    """Write the raw data of large initializers to ``path``, and note them under ``name``."""
    with path.open("wb") as stream:
        for tensor in proto.graph.initializer:
            if len(tensor.raw_data) < 1024:
                continue
            offset = stream.tell()
            stream.write(tensor.raw_data)
            length = len(tensor.raw_data)
            external_data_helper.set_external_data(tensor, name, offset, length)
            tensor.ClearField("raw_data")


def original(source: Any) -> onnx.ModelProto:
    """The model as it came: a file with its external data, bytes, or a copy of a ``ModelProto``."""
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy
    try:
        if isinstance(source, bytes):
            return onnx.load_model_from_string(source)
        if isinstance(source, (str, os.PathLike)):
            return onnx.load(os.fspath(source))
    except Exception:  # the import says what is wrong with a file in its own words
        files.read(source)
        raise
    raise ArgumentError(
        f"onnx_model: expected a path, bytes or a ModelProto but got {type(source).__name__}"
    )
