"""A process that makes the search index of a store in small steps, and says aloud when each is done.

`search_child.py STORE`: prints `step` after each step, and goes on when it is told to by a line. Prints `done` at the end.
"""

from __future__ import annotations

import sys

from cablestore import CableStore
from cablestore.search import index


def told(_: int) -> None:
    print("step", flush=True)
    sys.stdin.readline()


def main() -> None:
    index._POSTS_READ = 50  # type: ignore[misc] # fewer, so that it stops between them
    with CableStore.open(sys.argv[1]) as store:
        store.update_search_index(progress=told)
        print("done", flush=True)


if __name__ == "__main__":
    main()
