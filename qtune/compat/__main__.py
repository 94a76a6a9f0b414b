"""``python -m qtune.compat script.py args``."""

import sys

from qtune.compat.script import main

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory, which ``-m`` put there and a script does not have

sys.exit(main())
