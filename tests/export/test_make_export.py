"""Test data of the reindex job: it is valid, reproducible, and has the documented mix."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest
from make_export import make_exports

from cablestore import LEGACY, CableStore, Delete, Post, Text, decode_post
from cablestore.export import verify_export
from cablestore.export.manifest import read_manifest, read_posts, read_tombstones
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.body import DELETE

POSTS = 3_000
SLICE_POSTS = 500


@dataclass
class Content:
    """Content of exports: every post by its hash, the positions of its copies, and the tombstones."""

    posts: dict[bytes, Post]
    places: dict[bytes, list[tuple[Path, str]]]
    stones: list[tuple[Path, Tombstone]]

    @classmethod
    def of(cls, folders: list[Path]) -> Content:
        content = cls({}, {}, [])
        for folder in folders:
            manifest = read_manifest(folder)
            for segment in manifest.post_segments:
                for raw in (raw for raws in read_posts(folder, segment) for raw in raws):
                    post = decode_post(raw, LEGACY)
                    content.posts[post.hash] = post
                    content.places.setdefault(post.hash, []).append((folder, segment.file))
            for segment in manifest.tombstone_segments:
                content.stones += [(folder, stone) for stones in read_tombstones(folder, segment) for stone in stones]
        return content

    @property
    def deletions(self) -> list[tuple[Post, bytes]]:
        """Every post/delete with its targets."""
        posts = self.posts.values()
        return [(post, target) for post in posts if isinstance(post.body, Delete) for target in post.body.hashes]

    def dead(self) -> set[bytes]:
        """Return posts that are in the exports although their authors deleted them."""
        named = {(target, post.author) for post, target in self.deletions}
        return {post.hash for post in self.posts.values() if post.type != DELETE and (post.hash, post.author) in named}


def files_of(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_exports(tmp_path_factory.mktemp("made"), POSTS, exports=2, processes=1, slice_posts=SLICE_POSTS)


@pytest.fixture(scope="module")
def content(folders: list[Path]) -> Content:
    return Content.of(folders)


def test_exports_are_valid(folders: list[Path]) -> None:
    for folder in folders:
        report = verify_export(folder, signatures=True)
        assert report.is_clean, report.problems
        assert read_manifest(folder).tombstones > 10
        assert len(read_manifest(folder).post_segments) == POSTS / SLICE_POSTS


@pytest.mark.thorough
def test_bytes_depend_only_on_the_arguments(folders: list[Path], tmp_path: Path) -> None:
    made = files_of(folders[0].parent)
    make_exports(tmp_path / "two", POSTS, exports=2, processes=2, slice_posts=SLICE_POSTS)
    assert files_of(tmp_path / "two") == made
    make_exports(tmp_path / "other", POSTS, exports=2, processes=1, slice_posts=SLICE_POSTS, seed=2)
    other = files_of(tmp_path / "other")
    assert other.keys() == made.keys()
    assert all(other[name] != made[name] for name in made)


def test_exports_have_the_documented_counts_and_types(content: Content) -> None:
    assert len(content.posts) == POSTS
    copies = sum(map(len, content.places.values()))
    assert 0.07 < copies / POSTS - 1 < 0.13
    types = Counter(post.type_name for post in content.posts.values())
    shares = {"delete": 0.02, "info": 0.01, "join": 0.006, "leave": 0.004, "topic": 0.002}
    for name, share in shares.items():
        assert 0.4 * share * POSTS <= types[name] <= 2 * share * POSTS, name
    sizes = [len(post.body.text.encode()) for post in content.posts.values() if isinstance(post.body, Text)]
    assert 205 < fmean(sizes) < 245
    assert min(sizes) < 40
    assert max(sizes) > 1_000


def test_exports_have_busy_and_quiet_channels_and_authors(content: Content) -> None:
    channels = Counter(post.channel for post in content.posts.values() if post.channel is not None)
    authors = Counter(post.author for post in content.posts.values())
    assert 0.1 < max(channels.values()) / POSTS < 0.25
    assert len(channels) > 100
    assert 0.05 < max(authors.values()) / POSTS < 0.15
    assert len(authors) > 500


def test_a_hot_history_has_one_dominant_channel_and_author(tmp_path: Path) -> None:
    content = Content.of(make_exports(tmp_path, 1_000, processes=1, is_hot=True))
    channels = Counter(post.channel for post in content.posts.values() if post.channel is not None)
    authors = Counter(post.author for post in content.posts.values())
    assert 0.42 < max(channels.values()) / 1_000 < 0.55
    assert 0.27 < max(authors.values()) / 1_000 < 0.4


def test_posts_are_linked_also_across_segments_and_exports(content: Content) -> None:
    skeletons = {stone.target for _, stone in content.stones if stone.is_effective}
    linking = [post for post in content.posts.values() if post.links]
    assert len(linking) > 0.6 * POSTS
    between_segments = between_exports = skewed = 0
    for post in linking:
        for link in post.links:
            assert link in content.posts or link in skeletons
            if link in content.posts:
                ours, theirs = content.places[post.hash], content.places[link]
                assert content.posts[link].channel == post.channel
                between_segments += {file for _, file in ours}.isdisjoint(file for _, file in theirs)
                between_exports += {folder for folder, _ in ours}.isdisjoint(folder for folder, _ in theirs)
                skewed += content.posts[link].timestamp_ms > post.timestamp_ms
    assert between_segments > 10
    assert between_exports > 500
    assert skewed > 3


def test_deletions_target_posts_of_other_segments_and_exports(content: Content) -> None:
    dead = content.dead()
    targets: Counter[str] = Counter()
    for post, target in content.deletions:
        found = content.posts.get(target)
        ours, theirs = content.places[post.hash], content.places.get(target, [])
        if found is None:
            targets["gone"] += 1
        elif found.type == DELETE:
            targets["of a deletion"] += 1
        elif found.author != post.author:
            targets["by a stranger"] += 1
        else:
            assert target in dead
            assert {file for _, file in ours}.isdisjoint(file for _, file in theirs)
            targets["to another segment"] += 1
            targets["to another export"] += {folder for folder, _ in ours}.isdisjoint(folder for folder, _ in theirs)
    assert min(targets[name] for name in ("gone", "to another segment", "to another export")) >= 5
    assert min(targets[name] for name in ("of a deletion", "by a stranger")) >= 1


def test_tombstones_match_the_deletions(content: Content) -> None:
    claimed = {
        (folder, target, post.author) for post, target in content.deletions for folder, _ in content.places[post.hash]
    }
    assert {(folder, stone.target, stone.author) for folder, stone in content.stones} == claimed
    for _, stone in content.stones:
        assert stone.is_effective == (stone.target not in content.posts)


@pytest.mark.thorough
def test_a_store_imports_both_exports(folders: list[Path], content: Content, tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store:
        store.import_exports(folders)
        assert sum(store.stats().posts.values()) == POSTS - len(content.dead())
        assert store.check().is_clean


def test_impossible_arguments_are_rejected(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not fill"):
        make_exports(tmp_path, 1, exports=2)
    with pytest.raises(FileExistsError, match="finished export already"):
        make_exports(folders[0], 100)
