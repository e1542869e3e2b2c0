"""A process with a store and its causal logs open: `python sds_holder.py STORE [offer]`, until its input ends.

With `offer` it offers the store to others, like `serve`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from cablestore import CableStore, offer
from cablestore.sds import causal_log

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with ExitStack() as stack:
        store = stack.enter_context(CableStore.open(folder, create=False))
        log = stack.enter_context(causal_log(store))
        log.channel("held", "ann").send(b"here", 1_700_000_000_000)
        if sys.argv[2:] == ["offer"]:
            stack.enter_context(offer(store))
        print("open", flush=True)
        sys.stdin.read()
