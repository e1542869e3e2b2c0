"""A process that works on a store until it is killed, and prints what is safely stored.

`crash_child.py FOLDER SEED WORK`: every line on standard output is an acknowledgement, written after the call returned.
"""

from __future__ import annotations

import random
import shutil
import sys
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from people import ANN, BOB, START_MS, raws

from cablestore import CableStore, Post
from cablestore.store.closed import ClosedStore, locked_folder


def say(word: str, *hashes: bytes) -> None:
    sys.stdout.write(" ".join([word, *(digest.hex() for digest in hashes)]) + "\n")
    sys.stdout.flush()


def import_some(store: CableStore, scratch: Path, posts: list[Post]) -> None:
    """Export posts of another store, one of them deleted there, and import that."""
    with CableStore.in_memory(identity=ANN.identity) as other, TemporaryDirectory(dir=scratch) as folder:
        gone = ANN.text("default", f"gone {posts[0].timestamp_ms}", at=posts[0].timestamp_ms)
        other.ingest(raws(*posts, gone, ANN.delete(gone, at=gone.timestamp_ms + 1)))
        other.export(Path(folder) / "export")
        store.import_exports([Path(folder) / "export"])


def go_back_and_forth(path: Path) -> None:
    """Keep the live generation, activate a copy of it, and go back."""
    with locked_folder(path) as folder:
        live, copy = folder.header.generation, folder.begin()
        shutil.copytree(path / live, path / copy, dirs_exist_ok=True)
        folder.activate(copy, keep=True)
    ClosedStore(path).roll_back(live)
    ClosedStore(path).remove("kept")


def back_to(path: Path, seed: int) -> None:
    """Store posts and change generations in turn, until killed."""
    say("open")
    for step in count():
        with CableStore.open(path) as store:
            at_ms = START_MS + 10_000 * seed + step
            new = [ANN.text("default", f"{seed} {step} {i}", at=at_ms) for i in range(20)]
            store.ingest(raws(*new), sync=True)
            say("stored", *(post.hash for post in new))
        go_back_and_forth(path)
        say("back")


def main() -> None:
    folder, seed, work = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if work == "back-to":
        back_to(Path(folder), seed)
    rng = random.Random(seed)
    posts: list[Post] = []
    with CableStore.open(folder) as store:
        say("open")
        for step in count():
            at_ms = START_MS + 10_000 * seed + step  # each child process has another history
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
                gone = [posts.pop(rng.randrange(len(posts))) for _ in range(min(5, len(posts)))]
                for author in (ANN, BOB):
                    own = [post for post in gone if post.author == author.key]
                    store.ingest(raws(author.delete(*own, at=at_ms)), sync=True)
                    say("gone", *(post.hash for post in own))
            elif work == "import":
                new = [BOB.text("other", f"{seed} {step} {i}", at=at_ms) for i in range(20)]
                import_some(store, Path(folder).parent, new)
                say("stored", *(post.hash for post in new))
            elif work == "prune":
                store.prune(keep_newest=10)
                posts.clear()
                say("pruned")
            elif work == "rebuild":
                store.rebuild()
                say("rebuilt")


main()
