"""TorchScript files of converted models: ``to_device``, ``save``, ``load`` (plugin guide)."""

from __future__ import annotations

import io
import json
import logging
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from qtune.errors import ArgumentError, RunError
from qtune.hbir.serialize import SCHEMA_VERSION
from qtune.nn.quantized.program import OPERATOR
from qtune.report.files import write_with
from qtune.version import __version__

_log = logging.getLogger(__name__)

FORMAT = "1"
_FACTS = "qtune.json"
_DEVICE = "DeviceObjType"


def to_device(model: torch.jit.ScriptModule, device: torch.device | str) -> torch.jit.ScriptModule:
    """A copy of a traced or scripted model with its tensors and its device constants on ``device``.

    ``model.to(device)`` moves parameters and buffers only; devices that the model's code asked for
    while it was traced (``torch.ones(..., device=x.device)``) are constants of its graph. They and
    the tensors among the constants are replaced. ``model`` stays as it is.
    """
    _check_script(model, "to_device")
    target = torch.device(device)
    try:
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ArgumentError(f"to_device: this machine has no device {target} ({reason})") from error
    buffer = io.BytesIO()
    with undeprecated():
        torch.jit.save(model, buffer)
        buffer.seek(0)
        result: torch.jit.ScriptModule = torch.jit.load(buffer, map_location=target)  # type: ignore[no-untyped-call]
    for node in _nodes(result):
        if node.kind() == "prim::Constant":
            _move(node, target)
    return result


def save(model: torch.jit.ScriptModule, file: str | Path | Any) -> None:
    """Write a traced or scripted model with the version of qtune; whole or not at all.

    ``file``: a path, or an open binary file.
    """
    _check_script(model, "save")
    facts = {"format": FORMAT, "program": SCHEMA_VERSION, "version": __version__}
    extra = {_FACTS: json.dumps(facts)}

    def write(target: Any) -> None:
        with undeprecated():
            torch.jit.save(model, target, _extra_files=extra)

    if isinstance(file, (str, Path)):
        write_with(Path(file), lambda part: write(str(part)))
    else:
        write(file)


def load(file: str | Path | Any, map_location: Any = None) -> torch.jit.ScriptModule:
    """Read a model that :func:`save` wrote; the operators of converted models are known then.

    ``map_location``: where its tensors go, as of ``torch.jit.load``; :func:`to_device` moves
    constants of the graph, too. Raises ``RunError`` for a file without a version or of another
    format. A file of another version of qtune with the same format is loaded, and the log says so.
    """
    extra = {_FACTS: ""}
    source = str(file) if isinstance(file, Path) else file
    try:
        with undeprecated():
            model: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]
                source, map_location=map_location, _extra_files=extra
            )
    except (RuntimeError, zipfile.BadZipFile, ValueError) as error:
        raise RunError(
            f"jit.load: {file} can't be read as a TorchScript file: {str(error).splitlines()[0]}"
        ) from None
    _check_version(file, extra[_FACTS])
    return model


@contextmanager
def undeprecated() -> Iterator[None]:
    """torch announces the end of torch.jit; these files are what the toolchain's scripts use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        yield


def _check_version(file: Any, text: str | bytes) -> None:
    if not text:
        raise RunError(
            f"jit.load: {file} holds no version of qtune: torch.jit.save wrote it. Save it with "
            "qtune.jit.save, or load it with torch.jit.load"
        )
    facts = json.loads(text)
    wanted = {"format": FORMAT, "program": SCHEMA_VERSION}
    other = {key: facts.get(key) for key, value in wanted.items() if facts.get(key) != value}
    if other:
        raise RunError(
            f"jit.load: {file} was written by qtune {facts.get('version')} in another format "
            f"({other}, this one reads {wanted}); convert, trace and save the model again"
        )
    if facts["version"] != __version__:
        _log.warning(
            "jit.load: %s was written by qtune %s, this is %s; the format is the same",
            file,
            facts["version"],
            __version__,
        )


def _check_script(model: Any, where: str) -> None:
    if not isinstance(model, torch.jit.ScriptModule):
        raise ArgumentError(
            f"jit.{where}: expected what torch.jit.trace or torch.jit.script returned, got "
            f"{type(model).__name__}"
        )


def _nodes(model: torch.jit.ScriptModule) -> Iterator[Any]:
    """Every node of every method of every module, those in blocks, too."""
    for module in model.modules():
        native: Any = module._c
        for name in native._method_names():
            yield from _in_block(native._get_method(name).graph)


def _in_block(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _in_block(inner)


def _move(node: Any, device: torch.device) -> None:
    """A constant device becomes ``device``, a constant tensor goes there; programs stay."""
    output = next(node.outputs())
    if output.type().kind() == _DEVICE:
        node.s_("value", str(device))
        return
    is_tensor = node.hasAttribute("value") and node.kindOf("value") == "t"
    if is_tensor and all(use.user.kind() != OPERATOR for use in output.uses()):
        node.t_("value", node.t("value").to(device))
