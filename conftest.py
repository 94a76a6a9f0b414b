"""For the whole repository: pytester for the plugin's tests, one torch thread per process."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["pytester"]
