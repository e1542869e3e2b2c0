"""A rollback is rejected, and nothing is written, if either generation has a view that is not installed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from people import ANN, BOB, raws

from cablestore import CableStore, Post, StoreOptions, View
from cablestore.errors import IdentityError, OpenError
from cablestore.index.database import Row
from cablestore.index.folder import IDENTITY_FILE
from cablestore.index.leveldb import LevelDB
from cablestore.protocol.body import LOCAL_ONLY, TEXT, Block
from cablestore.store.closed import ClosedStore, locked_folder
from cablestore.views import CATALOG

Run = Callable[..., tuple[int, str, str]]
FIRST = "generation-000001"


def rows(post: Post) -> list[Row]:
    return [(b"!x!own!" + post.hash_hex, post.hash)]


OWN = View("own", 1, (b"!x!own!",), "", types=frozenset({TEXT}), rows=rows)
EXTENDED = CATALOG.extended([OWN])


def keep_a_copy(path: Path) -> None:
    """Keep the live generation, and make a copy of it live."""
    with locked_folder(path) as folder:
        copy = path.with_name("copy")
        shutil.copytree(folder.database_path, copy)
        folder.activate(folder.adopt(copy), keep=True)


def only_the_kept_one(path: Path) -> None:
    CableStore.open(path, options=StoreOptions(catalog=EXTENDED)).close()
    keep_a_copy(path)
    ClosedStore(path).rebuild(drop_views=frozenset({"own"}))
    with CableStore.open(path) as store:
        store.ingest(raws(ANN.text("default", "later")))


def only_the_live_one(path: Path) -> None:
    CableStore.open(path).close()
    keep_a_copy(path)
    ClosedStore(path, catalog=EXTENDED).rebuild()
    with CableStore.open(path, options=StoreOptions(catalog=EXTENDED)) as store:
        store.ingest(raws(ANN.text("default", "later")))


def both(path: Path) -> None:
    with CableStore.open(path, options=StoreOptions(catalog=EXTENDED)) as store:
        store.ingest(raws(ANN.text("default", "before")))
    keep_a_copy(path)
    with CableStore.open(path, options=StoreOptions(catalog=EXTENDED)) as store:
        store.ingest(raws(ANN.text("default", "later")))


def test_going_back_keeps_local_only_posts_of_a_key_outside_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "store"
    CableStore.open(path, identity=ANN.identity).close()
    keep_a_copy(path)
    with CableStore.open(path, identity=ANN.identity) as store:
        written = store.write(Block("spam", LOCAL_ONLY, (BOB.key,), 0, 0))
    assert not (path / IDENTITY_FILE).exists()
    with pytest.raises(IdentityError, match="cannot decrypt local-only posts"):
        ClosedStore(path).roll_back(FIRST)
    assert ClosedStore(path, identity=ANN.identity).roll_back(FIRST).arrived_since == 1
    with CableStore.open(path, identity=ANN.identity) as store:
        assert store.get(written.hash) == written
        assert store.check().is_clean


def content_of(path: Path) -> Iterator[object]:
    """Yield the header, and all rows of all generations."""
    yield (path / "STORE").read_bytes()
    for generation in sorted(path.glob("generation-*")):
        database = LevelDB(generation)
        with database.snapshot() as state:
            yield generation.name, list(state.scan(b"", b"\xff"))
        database.close()


@pytest.mark.parametrize("have", [only_the_kept_one, only_the_live_one, both])
def test_going_back_is_rejected_if_a_view_is_not_installed(
    have: Callable[[Path], None], tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "store"
    have(path)
    names = {entry.name for entry in path.iterdir()}
    before = list(content_of(path))
    status, said, err = run("generations", "--back-to", FIRST, "-s", path)
    assert (status, said) == (2, "")
    assert f"{path} has views that are not installed: own 1. Install the package" in re.sub(r"\s+", " ", err)
    with pytest.raises(OpenError, match="own 1"):
        ClosedStore(path).roll_back(FIRST)
    assert list(content_of(path)) == before
    assert {entry.name for entry in path.iterdir()} == names


@pytest.mark.parametrize("have", [only_the_kept_one, both])
def test_with_the_view_an_earlier_generation_has_the_rows_of_later_posts(
    have: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "store"
    have(path)
    assert ClosedStore(path, catalog=EXTENDED).roll_back(FIRST).arrived_since == 1
    with CableStore.open(path, options=StoreOptions(catalog=EXTENDED)) as store:
        of_posts = [post.hash for post in store.posts_by(ANN.key)]
        assert len(of_posts) == (2 if have is both else 1)
        assert sorted(value for key, value in store.dump() if key.startswith(b"!x!own!")) == sorted(of_posts)
        assert store.check().is_clean


@pytest.mark.parametrize("later", [0, 1, 3, 9])
def test_going_back_keeps_posts_of_a_database_with_another_history(tmp_path: Path, later: int) -> None:
    """A power failure lost the live database's last writes, and new posts reuse the numbers of the lost ones."""
    path = tmp_path / "store"
    texts = [ANN.text("default", f"{number}") for number in range(5 + later)]
    with CableStore.open(path) as store:
        store.ingest(raws(*texts[:2]))
    shutil.copytree(path / FIRST, tmp_path / "earlier")
    with CableStore.open(path) as store:
        store.ingest(raws(*texts[2:5]), batch_posts=1)
    keep_a_copy(path)
    shutil.rmtree(path / "generation-000002")
    shutil.copytree(tmp_path / "earlier", path / "generation-000002")
    with CableStore.open(path) as store:
        store.ingest(raws(*texts[5:]), batch_posts=2)
    ClosedStore(path).roll_back(FIRST)
    with CableStore.open(path) as store:
        assert all(store.get(post.hash) for post in texts)
        assert store.check().is_clean
