"""Store that drops a user with many posts, in a process of its own that is killed meanwhile.

sweep_child.py FOLDER
"""

from __future__ import annotations

import sys

from people import ANN, BOB, START_MS

from cablestore import CableStore, limits


def main() -> None:
    limits.MAX_BATCH_POSTS = 5  # type: ignore[misc] # many batches
    path = sys.argv[1]
    with CableStore.open(path, identity=ANN.identity, clock=lambda: START_MS, verify_threads=1) as store:
        if not store.user(BOB.key).is_dropped:
            store.moderation.drop(users=[BOB.key])
        print("dropped", flush=True)
        store.moderation.sweep(lambda _: print("batch", flush=True))
    print("done", flush=True)


if __name__ == "__main__":
    main()
