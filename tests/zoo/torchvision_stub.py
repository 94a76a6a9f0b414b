"""A stand-in for torchvision, for packages that import it and hardly use it.

timm, transformers and segmentation-models-pytorch import names of torchvision when they are
imported; their networks are plain torch. Here every such name is a class that says so when it is
made; what is read at import (``InterpolationMode``) is there.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.io",
    "torchvision.models",
    "torchvision.models.densenet",
    "torchvision.models.resnet",
    "torchvision.models.vgg",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.utils",
)


class InterpolationMode(enum.Enum):
    """How an image is resized; only the names are used."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _Absent:
    """Any class of torchvision: may be inherited from and asked about, not made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} needs torchvision itself, not this stub")


class _Stub(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (_Absent,), {})
        setattr(self, name, value)
        return value


@contextmanager
def stubbed() -> Iterator[None]:
    """The stub is in the place of torchvision until the block ends, where none is installed."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        yield
        return
    try:
        sys.modules.update(_modules())
        yield
    finally:
        for name in MODULES:
            sys.modules.pop(name, None)


def _modules() -> dict[str, _Stub]:
    made = {name: _Stub(name) for name in MODULES}
    for name, module in made.items():
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        owner, _, short = name.rpartition(".")
        if owner:
            setattr(made[owner], short, module)
    for name in ("torchvision.transforms", "torchvision.transforms.functional"):
        made[name].InterpolationMode = InterpolationMode
    made["torchvision"].__version__ = "0.0"
    return made
