"""The command `cablestore`, and `python -m cablestore`.

From here on Ctrl-C prints one line and ends with status 130: the modules of the command line take a while to load.
Before that, Python itself handles it.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Load the command line, run it and exit with its status."""
    try:
        from cablestore.cli import main as run  # noqa: PLC0415 - slow to load, so Ctrl-C must be handled already

        run()
    except KeyboardInterrupt:
        print("interrupted; what was stored stays stored", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, but Python takes a moment to end


if __name__ == "__main__":
    main()
