"""The command `cablestore`, also run by `python -m cablestore`.

Ctrl-C prints one line and ends the command with status 130, also while the modules of the command line are loaded.
Before this module runs, Python handles Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref

from cablestore.errors import MissingExtraError
from cablestore.extras import naming_extras
from cablestore.gc_pause import pause_for_start
from cablestore.streams import open_standard_streams

_POLL_S = 0.001
"""Interval of the checks whether Python has left the function in which it drops exceptions."""


def main() -> None:
    """Load the command line, run it and exit with its status."""
    open_standard_streams()
    sys.unraisablehook = _interrupt_later
    pause_for_start()
    try:
        with naming_extras("the command needs"):
            from cablestore.cli import main as run  # noqa: PLC0415 - slow to load, so Ctrl-C must be handled before
        run()
    except MissingExtraError as error:
        print(f"cablestore: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        print("interrupted: stored data is kept", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done: ignore Ctrl-C while Python exits
        # If Ctrl-C arrived while Python executed source text, for example to create a dataclass, Python would exit with
        # SIGINT instead of our status. Executing another source text clears this state.
        exec("")  # noqa: S102 - constant and empty


def _interrupt_later(unraisable: sys.UnraisableHookArgs) -> None:
    """Send Ctrl-C again if Python dropped it. Python drops all exceptions in destructors and weakref callbacks."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        here = threading.Event()
        threading.Thread(target=_interrupt_after, args=(weakref.ref(here), threading.get_ident()), daemon=True).start()
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_after(caller: weakref.ref[threading.Event], thread_id: int) -> None:
    """Send Ctrl-C to thread `thread_id` once `caller` is gone: its hook has returned. Python drops it until then."""
    while caller() is not None:
        time.sleep(_POLL_S)
    signal.pthread_kill(thread_id, signal.SIGINT)


if __name__ == "__main__":
    main()
