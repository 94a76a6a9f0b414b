"""``.bc`` files: an ONNX protobuf with qtune's metadata. Reading needs no torch and no pickle."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf import text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import checker

from qtune.errors import ArgumentError, HbirError
from qtune.hbir.builder import META_ATTRS, META_SCHEMA, META_SHAPES
from qtune.hbir.module import HbirModule
from qtune.report.files import write_with

SUFFIX = ".bc"
SCHEMA_VERSION = "1"
_META_CONTENT = "qtune.content"


def to_bytes(module: HbirModule) -> bytes:
    """The file content of a module."""
    proto = ir.to_proto(module.model)
    for entry in list(proto.metadata_props):
        if entry.key in {META_SCHEMA, _META_CONTENT}:
            proto.metadata_props.remove(entry)
    proto.metadata_props.add(key=META_SCHEMA, value=SCHEMA_VERSION)
    try:
        proto.metadata_props.add(key=_META_CONTENT, value=_content(proto))
        data = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise HbirError(
            f"the module can't be written: {error}. A .bc file holds at most 2 GiB"
        ) from None
    return bytes(data)


def from_bytes(data: bytes, where: str = "these bytes") -> HbirModule:
    """The module in ``data``; ``HbirError`` says what is wrong with ``where``."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
    except (DecodeError, UnicodeDecodeError):
        raise HbirError(
            f"{where} is no .bc file or is cut off ({len(data)} bytes): it can't be read as an "
            "ONNX protobuf. Save the module again"
        ) from None
    version = metadata.get(META_SCHEMA)
    if version is None:
        raise HbirError(
            f"{where} holds no qtune metadata: it is cut off, or an ONNX file of another tool. "
            "Save the module again, or open it with onnx"
        )
    if version != SCHEMA_VERSION:
        raise HbirError(
            f"{where} has format version {version}, this qtune reads {SCHEMA_VERSION}: export the "
            "model again with this version"
        )
    if metadata.get(_META_CONTENT) != _content(proto):
        raise HbirError(
            f"{where} is cut off, damaged or was edited: its content does not fit its checksum. "
            "Save the module again"
        )
    _check(proto, where)
    return HbirModule(ir.from_proto(proto))


def to_text(module: HbirModule, debug_info: bool) -> str:
    """The file content as text; without ``debug_info`` less the facts of the float operators."""
    proto = onnx.ModelProto()
    proto.ParseFromString(to_bytes(module))
    if not debug_info:
        for node in proto.graph.node:
            for entry in [e for e in node.metadata_props if e.key in (META_ATTRS, META_SHAPES)]:
                node.metadata_props.remove(entry)
    return str(text_format.MessageToString(proto))


def from_text(text: str) -> HbirModule:
    """The module in a text of :func:`to_text`, which may have been edited."""
    if not isinstance(text, str):
        raise ArgumentError(f"parse takes the text of get_asm, got {type(text).__name__}")
    try:
        proto = text_format.Parse(text, onnx.ModelProto())
    except text_format.ParseError as error:
        raise HbirError(f"the text is not one that get_asm gave: {error}") from None
    for entry in proto.metadata_props:
        if entry.key == _META_CONTENT:
            entry.value = _content(proto)
    return from_bytes(proto.SerializeToString(), "this text")


def _content(proto: onnx.ModelProto) -> str:
    """SHA-256 of everything but itself, to notice a file that was cut, damaged or edited."""
    rest = onnx.ModelProto()
    rest.CopyFrom(proto)
    for entry in list(rest.metadata_props):
        if entry.key == _META_CONTENT:
            rest.metadata_props.remove(entry)
    return hashlib.sha256(rest.SerializeToString(deterministic=True)).hexdigest()


def _check(proto: onnx.ModelProto, where: str) -> None:
    try:
        checker.check_model(proto)
    except checker.ValidationError as error:
        raise HbirError(f"{where} is no valid ONNX model: {error}") from None


def save(module: HbirModule, path: str | Path) -> None:
    """Write ``module`` to ``path`` (suffix ``.bc``), whole or not at all."""
    target = Path(path)
    if target.suffix != SUFFIX:
        raise ArgumentError(f"{target}: a module is saved under the suffix {SUFFIX}")
    data = to_bytes(module)
    write_with(target, lambda partial: partial.write_bytes(data))


def load(path: str | Path) -> HbirModule:
    """Read a ``.bc`` file."""
    source = Path(path)
    if source.suffix != SUFFIX:
        raise ArgumentError(f"{source}: expected a file with the suffix {SUFFIX}")
    try:
        data = source.read_bytes()
    except OSError as error:
        raise HbirError(f"{source} can't be read: {error.strerror}") from None
    return from_bytes(data, str(source))
