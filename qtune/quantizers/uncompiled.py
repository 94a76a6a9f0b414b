"""What runs eagerly under ``torch.compile``, with the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

REASON = "qtune runs prepared operators eagerly: they count statistics and check scales"

Method = TypeVar("Method", bound=Callable[..., Any])


def runs_eagerly(method: Method) -> Method:
    """Leave ``method`` out of what ``torch.compile`` traces: the graph breaks around it.

    Its decisions depend on buffers (is there a scale?), its statistics are side effects. With
    ``fullgraph=True`` torch raises, as for every break. Nothing of the compiler is imported before
    it runs.
    """

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            disable: Callable[..., Method] = torch.compiler.disable
            return disable(method, reason=REASON)(*args, **kwargs)
        return method(*args, **kwargs)

    return run  # type: ignore[return-value]
