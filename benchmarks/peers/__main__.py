"""`python -m benchmarks.peers`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from benchmarks.peers.cli import main

if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except KeyboardInterrupt:
        status = 130
        with suppress(BrokenPipeError):
            print("interrupted", file=sys.stderr)
    sys.exit(status)
