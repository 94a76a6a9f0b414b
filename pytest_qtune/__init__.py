"""The pytest plugin of qtune. Only the standard library and pytest are imported at load.

The assertions are those of ``qtune.testing``; they are imported when first asked for.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("assert_") or name == "Stages":
        import qtune.testing

        return getattr(qtune.testing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
