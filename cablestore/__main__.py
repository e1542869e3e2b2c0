"""The command `cablestore`, and `python -m cablestore`.

From here on Ctrl-C prints one line and ends with status 130: the modules of the command line take a while to load.
Before that, Python itself handles it.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref

from cablestore.errors import MissingExtraError
from cablestore.extras import naming_extras
from cablestore.streams import open_standard_streams

_LOOK_S = 0.001
"""How often it is looked whether the place where Python drops exceptions is left."""


def main() -> None:
    """Load the command line, run it and exit with its status."""
    open_standard_streams()
    sys.unraisablehook = _interrupt_later
    try:
        with naming_extras("the command needs"):
            from cablestore.cli import main as run  # noqa: PLC0415 - slow to load, so Ctrl-C must be handled already
        run()
    except MissingExtraError as error:
        print(f"cablestore: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        print("interrupted; what was stored stays stored", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, but Python takes a moment to end
        # If Ctrl-C came while Python ran a text, as it does to make a dataclass, Python would end by SIGINT and not with
        # our status. It forgets that when it runs another text.
        exec("")  # noqa: S102 - it does nothing else


def _interrupt_later(unraisable: sys.UnraisableHookArgs) -> None:
    """Send Ctrl-C again if Python dropped it, as it drops every exception in a destructor or a weak reference's call."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        here = threading.Event()
        threading.Thread(target=_interrupt_after, args=(weakref.ref(here), threading.get_ident()), daemon=True).start()
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_after(caller: weakref.ref[threading.Event], thread_id: int) -> None:
    """Send Ctrl-C when the caller has returned and its variable is gone: Python would drop it there too."""
    while caller() is not None:
        time.sleep(_LOOK_S)
    signal.pthread_kill(thread_id, signal.SIGINT)


if __name__ == "__main__":
    main()
