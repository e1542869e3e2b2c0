"""A process that has a store and its causal logs open: `python sds_holder.py STORE [control]`, until its input ends.

With `control` it runs commands for others, as `serve` does.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from cablestore import CableStore
from cablestore.cli.remote import control
from cablestore.sds import causal_log

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with ExitStack() as stack:
        store = stack.enter_context(CableStore.open(folder, create=False))
        log = stack.enter_context(causal_log(store))
        log.channel("held", "ann").send(b"here", 1_700_000_000_000)
        if sys.argv[2:] == ["control"]:
            stack.enter_context(control(store, folder))
        print("open", flush=True)
        sys.stdin.read()
