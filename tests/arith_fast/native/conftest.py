"""Two forms of one call: compiled, and torch's own operators (checked against the rules)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from qtune.arith_fast.native import engine

if not engine.available():
    pytest.skip("llvmlite is not installed", allow_module_level=True)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def both(make: Callable[[], Any]) -> tuple[Any, Any]:
    """What ``make`` gives with compiled kernels and without them."""
    compiled = make()
    before = os.environ.get(engine.SWITCH)
    os.environ[engine.SWITCH] = "off"
    try:
        return compiled, make()
    finally:
        if before is None:
            del os.environ[engine.SWITCH]
        else:
            os.environ[engine.SWITCH] = before
