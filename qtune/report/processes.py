"""Which process this is, for who imports no ``torch``."""

from __future__ import annotations

import sys
from typing import Any


def is_first_process() -> bool:
    """Whether no other process of ``torch.distributed`` comes before this one.

    The first one alone shows bars and tables. Who never imported ``torch`` has no process group.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return bool(distributed.get_rank() == 0)
