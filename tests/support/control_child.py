"""A process that has a store open and offers it to others: `python control_child.py STORE`, until it is interrupted.

Each line on standard input is a text that it stores itself, as a peer's would be.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cablestore import CableStore, offer

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with CableStore.open(folder, create=False) as store, offer(store):
        print("open", flush=True)
        for line in sys.stdin:
            store.post("default", line.rstrip("\n"))
