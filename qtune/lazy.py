"""Names of a package that are imported when somebody asks for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def importer(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package``; ``homes``: name -> the module of it that has the name."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - as it is shown in a traceback
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return __getattr__
