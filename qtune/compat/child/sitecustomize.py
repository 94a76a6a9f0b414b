"""Read by an interpreter at its start: the toolchain's names for a child process, too.

A ``sitecustomize`` of the environment, which this one stands before, runs as ever.
"""

import importlib.util
import os
import sys
from pathlib import Path


def _run_the_other() -> None:
    """What would have been imported without this folder."""
    here = Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if Path(entry) != here]
    ours = sys.modules.pop("sitecustomize", None)
    if importlib.util.find_spec("sitecustomize") is not None:
        importlib.import_module("sitecustomize")
    elif ours is not None:
        sys.modules["sitecustomize"] = ours


_run_the_other()
if os.environ.get("QTUNE_COMPAT") and importlib.util.find_spec("qtune") is not None:
    from qtune.compat import install

    install(os.environ["QTUNE_COMPAT"])
