"""Store that drops a user with many posts, in a process of its own that is killed meanwhile.

sweep_child.py FOLDER [BATCHES]

It waits to be killed after one batch more than BATCHES, so it never ends before, however slow the other process is.
"""

from __future__ import annotations

import signal
import sys

from people import ANN, BOB, START_MS

from cablestore import CableStore, StoreOptions, limits


def main() -> None:
    limits.MAX_BATCH_POSTS = 5  # type: ignore[misc] # many batches
    path = sys.argv[1]
    with CableStore.open(
        path, identity=ANN.identity, options=StoreOptions(clock=lambda: START_MS, verify_threads=1)
    ) as store:
        if not store.user(BOB.key).is_dropped:
            store.moderation.drop(users=[BOB.key])
        print("dropped", flush=True)
        left = int(sys.argv[2]) if sys.argv[2:] else None

        def progress(_: int) -> None:
            nonlocal left
            print("batch", flush=True)
            if left == 0:
                signal.pause()
            left = None if left is None else left - 1

        store.moderation.sweep(progress)
    print("done", flush=True)


if __name__ == "__main__":
    main()
