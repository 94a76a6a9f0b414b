"""Calls by position in the order of the debugger's document, which begins with ``save_dir``."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import onnx

P = ParamSpec("P")
T = TypeVar("T")
_MODEL = "model_or_file"


def also_in_document_order(*order: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function take positional arguments in the document's order, too.

    ``order``: the document's names of parameters. The two orders can be told apart by the place of
    the model: a call is in the document's where a model (``ModelProto``, or a path that ends in
    ``.onnx``) stands at the document's place and none at that of the signature.
    """
    there = order.index(_MODEL)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        here = list(inspect.signature(function).parameters).index(_MODEL)

        any_order: Callable[..., T] = function

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            fits = there < len(args) <= len(order)
            if fits and _is_model(args[there]) and not _is_model(args[here]):
                return any_order(**dict(zip(order, args, strict=False)), **kwargs)
            return function(*args, **kwargs)

        return call

    return decorate


def _is_model(given: object) -> bool:
    if isinstance(given, str | os.PathLike):
        return os.fspath(given).endswith(".onnx")
    return isinstance(given, onnx.ModelProto)
