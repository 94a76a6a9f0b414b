"""Where in the user's code a call comes from."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_TORCH = str(Path(torch.__file__).parent)
_STDLIB = sysconfig.get_path("stdlib")
_HERE = str(Path(__file__).parent.parent)
_PLUGIN = str(Path(_HERE).parent / "pytest_qtune")


def caller() -> str:
    """``file.py:12`` of the innermost running line that is neither torch's nor ours.

    A model made of torch's own containers only has no such line; then it is the container's.
    """
    frame: FrameType | None = sys._getframe(1)
    container = ""
    while frame is not None:
        owner = _owner(frame.f_code.co_filename)
        if owner == "user":
            return _place(frame)
        if owner == "torch" and not container:
            container = _place(frame)
        is_run = frame.f_code.co_name == "run_model" and owner == "qtune"
        if is_run or owner == "plugin":  # of pytest: a gate file has no line of the user's
            break
        frame = frame.f_back
    return container


def place_of(error: BaseException) -> str:
    """``file.py:12`` of the innermost of the user's lines that ``error`` went through, or ``""``.

    The lines above qtune's first frame are those that called qtune, and do not count.
    """
    place, trace, inside = "", error.__traceback__, False
    while trace is not None:
        owner = _owner(trace.tb_frame.f_code.co_filename)
        inside = inside or owner == "qtune"
        if inside and owner == "user":
            place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def call_site(meta: Mapping[str, Any]) -> str:
    """`` (model.py:12, in layer1)`` for the ``meta`` of a node: source line and scope.

    For messages, after an operator's name; ``""`` where nothing is known.
    """
    source, scope = str(meta.get("source") or ""), str(meta.get("scope") or "")
    parts = [source] if source else []
    parts += [f"in {scope}"] if scope else []
    return f" ({', '.join(parts)})" if parts else ""


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@cache
def _owner(filename: str) -> str:
    if filename.startswith(_HERE):
        return "qtune"
    if filename.startswith(_PLUGIN):
        return "plugin"
    is_installed = "site-packages" in filename or "dist-packages" in filename
    if filename.startswith(_STDLIB) and not is_installed:  # contextlib and the like, on the way
        return "torch"
    return "torch" if filename.startswith((_TORCH, "<")) else "user"
