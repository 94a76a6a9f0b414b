"""The pytest plugin of qtune. Only the standard library and pytest are imported at load.

The assertions are those of ``qtune.testing``; they are imported when first asked for.

PYTEST_DONT_REWRITE: a program that imports it and then calls pytest gets no warning of it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("assert_") or name == "Stages":
        import qtune.testing

        return getattr(qtune.testing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
