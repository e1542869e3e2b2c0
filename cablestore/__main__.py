"""The command `cablestore`, and `python -m cablestore`.

Ctrl-C gives one line and status 130 from here on: the modules of the command line take a while to load. Earlier it meets
Python itself, and nothing of ours.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Load the command line, run it and exit with its status."""
    try:
        from cablestore.cli import main as run  # noqa: PLC0415 - what takes a while is loaded in here

        run()
    except KeyboardInterrupt:
        print("interrupted; what was stored stays stored", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and done; Python takes a moment to end


if __name__ == "__main__":
    main()
