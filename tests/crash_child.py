"""A process that works on a store until it is killed, and says aloud what is safely stored.

`crash_child.py FOLDER SEED WORK`: every line on standard output is an acknowledgement, written after the call returned.
"""

from __future__ import annotations

import random
import sys
from itertools import count

from people import ANN, BOB, START_MS, raws

from cablestore import CableStore, Post


def say(word: str, *hashes: bytes) -> None:
    sys.stdout.write(" ".join([word, *(digest.hex() for digest in hashes)]) + "\n")
    sys.stdout.flush()


def main() -> None:
    folder, seed, work = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    rng = random.Random(seed)
    posts: list[Post] = []
    with CableStore.open(folder) as store:
        say("open")
        for step in count():
            at_ms = START_MS + 1_000_000 * seed + step  # another history for each child
            if work == "ingest" or not posts or rng.random() < 0.5:
                last: tuple[bytes, ...] = tuple(post.hash for post in posts[-1:])
                author = rng.choice((ANN, BOB))
                new = [author.text("default", f"{seed} {step} {i}", at=at_ms, links=last) for i in range(20)]
                new += [
                    author.join("default", at=at_ms),
                    author.topic("default", str(step), at=at_ms),
                ]
                store.ingest(raws(*new), sync=True, batch_posts=len(new))
                posts += new
                say("stored", *(post.hash for post in new))
            elif work == "delete":
                gone = [posts.pop(rng.randrange(len(posts))) for _ in range(5)]
                for author in (ANN, BOB):
                    own = [post for post in gone if post.author == author.key]
                    store.ingest(raws(author.delete(*own, at=at_ms)), sync=True)
                    say("gone", *(post.hash for post in own))
            elif work == "prune":
                store.prune(keep_newest=10)
                posts.clear()
                say("pruned")
            elif work == "rebuild":
                store.rebuild()
                say("rebuilt")


main()
