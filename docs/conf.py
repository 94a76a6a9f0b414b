"""Sphinx builds the site of these pages: ``python -m sphinx -W -b html docs <folder>``."""

from __future__ import annotations

import runpy
from pathlib import Path

_version = runpy.run_path(str(Path(__file__).parents[1] / "qtune" / "version.py"))

project = "qtune"
author = "the qtune authors"
release = _version["__version__"]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
smartquotes = False  # "--flag" outside of code stays as it is
html_theme = "furo"
html_title = f"qtune {release}"
html_show_copyright = False
html_copy_source = False
