"""A process that builds the search index of a store in small steps, and prints each finished one.

`search_child.py STORE [checkpoints]`: prints `step` after each step, and continues after a line of input. Prints `done`
at the end. With `checkpoints` each step ends with a checkpoint.
"""

from __future__ import annotations

import sys

from cablestore import CableStore
from cablestore.search import index, page_sums


def report_step(_: int) -> None:
    print("step", flush=True)
    sys.stdin.readline()


def main() -> None:
    index._POSTS_READ = 50  # type: ignore[misc] # fewer, so that there are several steps
    if sys.argv[2:]:
        page_sums._LARGEST_LOG_SIZE_BYTES = 1  # type: ignore[misc] # as after a large step
    with CableStore.open(sys.argv[1]) as store:
        store.update_search_index(progress=report_step)
        print("done", flush=True)


if __name__ == "__main__":
    main()
