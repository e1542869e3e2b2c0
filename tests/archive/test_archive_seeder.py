"""A seeder follows its folder: new archives are seeded, and lost ones are reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torrents import COMMUNITY, engine, fill, opened
from waiting import wait_until

from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.magnet import Magnet
from cablestore.archive.local import are_whole
from cablestore.archive.seed import Seeder
from cablestore.archive.torrent.engine import has_index_of
from cablestore.errors import ArchiveError, StorageError
from cablestore.limits import PIECE_SIZE_BYTES


def test_new_archives_are_seeded_under_a_new_link(tmp_path: Path) -> None:
    fill(tmp_path / "a", [2, 1])
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        seeder = Seeder(giver, COMMUNITY)
        first = seeder.link
        assert first == giver.seed(COMMUNITY)
        assert not seeder.seed_new()
        assert (seeder.peers, seeder.given_bytes, seeder.link) == (0, 0, first)
        opened(member, first, giver).index()
        wait_until(lambda: (seeder.peers, seeder.given_bytes) == (1, 3_000))

        fill(tmp_path / "a", [1], seed=2)
        with ArchiveFolder(tmp_path / "a" / COMMUNITY).claimed():
            assert not seeder.seed_new()
        assert seeder.link == first
        assert seeder.seed_new()
        assert seeder.link == giver.seed(COMMUNITY) != first
        assert not seeder.seed_new()
        assert seeder.given_bytes == 3_000  # the bytes of the earlier torrent also count
        giver.unseed(COMMUNITY)
        with pytest.raises(ArchiveError, match="is not seeded"):
            seeder.seed_new()
        assert (seeder.peers, seeder.given_bytes) == (0, 3_000)


def test_an_index_whose_archives_are_missing_is_not_seeded(tmp_path: Path) -> None:
    fill(tmp_path / "a", [1])
    data = tmp_path / "a" / COMMUNITY / "data"
    with engine(tmp_path / "a") as giver:
        seeder = Seeder(giver, COMMUNITY)
        first = seeder.link
        os.truncate(data, 2 * PIECE_SIZE_BYTES)
        fill(tmp_path / "a", [], seed=2)
        assert not seeder.seed_new()
        assert seeder.link == first
        with data.open("r+b") as file:
            file.seek(PIECE_SIZE_BYTES)
            file.write(b"x" * PIECE_SIZE_BYTES)
        fill(tmp_path / "a", [], seed=2)
        assert seeder.seed_new()


@pytest.mark.parametrize("lost", ["data", "index", "an archive"])
def test_a_folder_that_lost_archives_can_no_longer_be_seeded(tmp_path: Path, lost: str) -> None:
    fill(tmp_path / "a", [1, 1])
    with engine(tmp_path / "a") as giver:
        seeder = Seeder(giver, COMMUNITY)
        if lost == "an archive":
            os.truncate(tmp_path / "a" / COMMUNITY / "data", PIECE_SIZE_BYTES)
        else:
            (tmp_path / "a" / COMMUNITY / lost).unlink()
        for _ in range(2):
            with pytest.raises(
                StorageError, match="can no longer be seeded" if lost == "an archive" else "no archives"
            ):
                seeder.seed_new()


def test_a_folder_that_cannot_be_read_raises_an_error(tmp_path: Path) -> None:
    fill(tmp_path / "a", [1])
    data = tmp_path / "a" / COMMUNITY / "data"
    with engine(tmp_path / "a") as giver:
        seeder = Seeder(giver, COMMUNITY)
        data.unlink()
        data.mkdir()
        for _ in range(2):
            with pytest.raises(ArchiveError, match="cannot seed"):
                seeder.seed_new()


def test_only_a_folder_that_is_not_being_fetched_is_seeded(tmp_path: Path) -> None:
    fill(tmp_path / "a", [1])
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        with pytest.raises(ArchiveError, match="is not seeded"):
            giver.check_seed(COMMUNITY)
        link = giver.seed(COMMUNITY)
        giver.check_seed(COMMUNITY)
        with pytest.raises(ArchiveError, match="nothing to fetch"):
            giver.open(link, community=COMMUNITY)
        remote = opened(member, link, giver)
        remote.index()
        list(remote.fetch([]))
        fill(tmp_path / "b", [1])
        with pytest.raises(ArchiveError, match="Close the TorrentRemote first"):
            member.seed(COMMUNITY)
        giver.unseed(COMMUNITY)
        assert giver.status(COMMUNITY) is None
        with pytest.raises(ArchiveError, match="is not seeded"):
            giver.check_seed(COMMUNITY)


def test_an_index_is_compared_with_the_torrent_of_a_link(tmp_path: Path) -> None:
    fill(tmp_path / "a", [1])
    folders = tmp_path / "a", tmp_path / "a t"
    with engine(tmp_path / "a") as giver:
        magnet = Magnet.parse(giver.seed(COMMUNITY))
        assert has_index_of(magnet, *folders)
        assert not has_index_of(magnet, tmp_path / "elsewhere", tmp_path / "a t")
        assert not has_index_of(magnet, tmp_path / "a", tmp_path / "elsewhere")
        fill(tmp_path / "a", [], seed=2)
        assert not has_index_of(magnet, *folders)
        newer = Magnet.parse(giver.seed(COMMUNITY))
        assert has_index_of(newer, *folders)
        assert not has_index_of(magnet, *folders)


def test_only_an_index_that_is_verified_with_its_key_is_checked(tmp_path: Path) -> None:
    key = bytes(32)
    assert not are_whole(tmp_path, "abc", None)
    with pytest.raises(ArchiveError, match="invalid community for a cabal key"):
        are_whole(tmp_path, "abc", key)
    assert not are_whole(tmp_path, COMMUNITY, key)
    fill(tmp_path, [1])
    assert not are_whole(tmp_path, COMMUNITY, None)
    with pytest.raises(ArchiveError):
        are_whole(tmp_path, COMMUNITY, key)
