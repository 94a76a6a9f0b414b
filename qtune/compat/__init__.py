"""The toolchain's import roots as aliases of qtune's, so that its scripts run unchanged.

``python -m qtune.compat script.py args`` runs one; ``install()`` serves the names inside of a
process, ``uninstall()`` (or the end of ``with install():``) takes all back. Nothing here loads
torch.
"""

from qtune.compat.install import Installation, install, uninstall
from qtune.compat.script import run

__all__ = ["Installation", "install", "run", "uninstall"]
