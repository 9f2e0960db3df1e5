"""`python -m remand_workers.cli`, which is how worker processes are started: the interpreter is then the same one."""

from __future__ import annotations

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
