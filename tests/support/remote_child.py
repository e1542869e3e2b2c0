"""A process at one end of a connection.

python remote_child.py owner STORE      opens a store and offers it, until its standard input ends
python remote_child.py program STORE    writes numbered texts to a store that another process has open
python remote_child.py waiter STORE     waits for a change, and counts what interrupts it
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import cablestore
from cablestore.store.changes import MessageAdded


def own(path: Path) -> None:
    with cablestore.CableStore.open(path) as store, cablestore.offer(store):
        print("open", flush=True)
        sys.stdin.read()


def write(path: Path) -> None:
    with cablestore.connect(path) as store:
        following = store.changes("c", store.cursor)
        snapshot = store.snapshot()
        print("open", flush=True)
        for number in count():
            store.post("c", f"text {number}", sync=False)
            next(following)
            snapshot.messages("c")


def wait(path: Path) -> None:
    with cablestore.connect(path) as store:
        try:
            print("open", flush=True)
            next(store.changes("c"))
        except KeyboardInterrupt:
            following = store.changes("c", store.cursor)
            store.post("c", "after Ctrl-C")
            print(next(each.message.text for each in following if isinstance(each, MessageAdded)), flush=True)


if __name__ == "__main__":
    {"owner": own, "program": write, "waiter": wait}[sys.argv[1]](Path(sys.argv[2]))
