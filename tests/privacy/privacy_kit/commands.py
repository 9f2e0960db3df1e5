"""Several command lines in one process. `python -m privacy_kit.commands`, a JSON list of lists on standard input."""

from __future__ import annotations

import json
import sys

from remand_workers.cli import main

if __name__ == "__main__":
    for arguments in json.load(sys.stdin):
        sys.stdout.write(f"$ remand {' '.join(arguments)}\n")
        sys.stdout.flush()
        sys.stderr.write(f"$ remand {' '.join(arguments)}\n")
        status = main(arguments)
        sys.stdout.write(f"$ exit status {status}\n")
