"""What the tests of exports share: small exports of stores in memory, and what is in them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import blake3
from history import AUTHORS, Draft, build
from people import raws

from cablestore import LEGACY, CableStore, Dialect, Post, StoreOptions, Tombstone
from cablestore.export import Manifest
from cablestore.export.manifest import read_posts, read_tombstones
from cablestore.export.writer import ExportWriter, post_record
from cablestore.views import CATALOG

SMALL: dict[str, Any] = {"segment_size_bytes": 700, "run_size_bytes": 900}
"""Sizes with which a history of a few posts takes several runs and segments."""

IN_MEMORY = Path("/dev/shm")  # a folder in memory, where there is one: hundreds of exports need not wait for a disk


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None)


def in_memory(dialect: Dialect, posts: Iterable[Post] = ()) -> CableStore:
    store = CableStore.in_memory(
        dialect=dialect, identity=AUTHORS[0], options=StoreOptions(verify_threads=1, moderated=False)
    )
    store.ingest(raws(*posts), verify=False)
    return store


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "arrivals.json"}


def export(posts: Iterable[Post], folder: Path, dialect: Dialect, **options: Any) -> Manifest:
    with in_memory(dialect, posts) as store:
        return store.export(folder, **{**SMALL, **options})


def import_(dialect: Dialect, *folders: Path) -> list[tuple[bytes, bytes]]:
    """Return the dump of a new store that took these exports."""
    with in_memory(dialect) as store:
        store.import_exports(folders)
        return list(store.dump())


def posts_in(manifest: Manifest) -> list[bytes]:
    return [
        raw for segment in manifest.post_segments for block in read_posts(manifest.folder, segment) for raw in block
    ]


def stones_in(manifest: Manifest) -> list[Tombstone]:
    return [
        stone
        for segment in manifest.tombstone_segments
        for block in read_tombstones(manifest.folder, segment)
        for stone in block
    ]


def some_posts() -> list[Post]:
    """Return posts of eight types, deletions before, after and without their targets, of others, and of a deletion."""
    kinds = (0, 4, 5, 3, 2, 6, 8, 0, 0, 1, 1, 3)
    drafts = [
        Draft(kind, author, channel, 3 + (author + kind) % 4, word % 4, (word, word + 3, 40))
        for word, kind in enumerate(kinds)
        for author, channel in ((0, 0), (1, 2), (2, 7))
    ]
    return build(drafts, LEGACY)


def forge(folder: Path, posts: Iterable[Post], stones: Iterable[Tombstone], dialect: Dialect = LEGACY) -> Path:
    """Write an export with any content: no store need ever have held it."""
    writer = ExportWriter(folder, dialect, CATALOG.versions)
    ordered = sorted({post.hash: post for post in posts}.values(), key=lambda post: (post.timestamp_ms, post.hash))
    writer.add_records([post_record(post.timestamp_ms, post.hash, post.raw, post.type)] for post in ordered)
    writer.add_tombstones(sorted(stones, key=lambda stone: (stone.target, stone.author)))
    writer.finish()
    return folder


def copied(whole: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in whole.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def stored(folder: Path) -> CableStore:
    store = CableStore.open(folder, options=StoreOptions(verify_threads=1))
    store.ingest(raws(*some_posts()), verify=False)
    return store


def files_of_export(posts: list[Post], folder: Path) -> dict[str, bytes]:
    export(posts, folder, LEGACY)
    return files_of(folder)


def with_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and give it the right checksum."""
    fields = json.loads((folder / "manifest.json").read_text())
    fields.pop("blake3")
    change(fields)
    text = json.dumps(fields, indent=1) + "\n"
    fields["blake3"] = blake3.blake3(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(fields, indent=1) + "\n")
