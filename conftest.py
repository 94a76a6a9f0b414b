"""For the whole repository: pytester for the plugin's tests, one torch thread per process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
if "QTUNE_CACHE_DIR" not in os.environ:  # not the folder of who runs the tests
    os.environ["QTUNE_CACHE_DIR"] = tempfile.mkdtemp(prefix="qtune-cache-")
    atexit.register(shutil.rmtree, os.environ["QTUNE_CACHE_DIR"], ignore_errors=True)

pytest_plugins = ["pytester"]
