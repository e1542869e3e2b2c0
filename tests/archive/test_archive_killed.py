"""SIGKILL while archives are created, fetched and imported: the result equals that of an undisturbed run."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from archive_network import (
    CABAL_KEY,
    Seed,
    Wire,
    bytes_of,
    digest,
    index_of,
    long_history,
    made_store,
    posts_of,
    run_json,
    started,
    whole_pieces_bytes,
)
from archives import FIRST_MS
from people import BOB
from waiting import wait_until

from cablestore import LEGACY, CableStore, decode_post
from cablestore.archive.folder import ArchiveFolder, end_of
from cablestore.archive.format.period import WEEK_MS
from cablestore.limits import PIECE_SIZE_BYTES
from cablestore.protocol.crypto import post_hash

WEEKS = 16
PER_WEEK = 250
LOST_PIECES = 5
"""Number of pieces that a member may have received but not written, because they are incomplete."""
EXTRAS = [BOB.text("default", "in no archive", at=FIRST_MS + week * WEEK_MS + 99) for week in range(0, WEEKS, 3)]

often = pytest.mark.parametrize("kills", [4, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])


class Made(NamedTuple):
    """Control node: its store and the folder of its archives, created without interruption."""

    store: Path
    folder: Path
    community: str

    @property
    def of_member(self) -> tuple[str, ...]:
        return ("--control", self.community, "--cabal-key", CABAL_KEY)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("made")
    community = made_store(path / "control", long_history(WEEKS, PER_WEEK))
    [created] = run_json("create", path / "made", "--cabal-key", CABAL_KEY, store=path / "control")
    assert created["archives"] == WEEKS + 1  # the last deletions are a week later
    return Made(path / "control", path / "made", community)


def is_killed(
    command: tuple[object, ...],
    store: Path,
    progress: Callable[[], float],
    until: float,
    pause: Callable[[], object],
) -> bool:
    """Start a command, wait for its progress, pause, and kill it. Returns True if it was still running."""
    process = started(*command, "--json", store=store, output=output_of(store))
    least = max(until, progress())
    wait_until(lambda: process.poll() is not None or progress() > least)
    pause()
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0


def output_of(store: Path) -> Path:
    """Return the file for the output of commands on a store."""
    return store.with_suffix(".output")


def interrupted(
    command: tuple[object, ...],
    store: Path,
    progress: Callable[[], float],
    end: float,
    rng: random.Random,
    times: int = 4,
    pause: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Run a command until it completes, with up to `times` kills on the way. Yields after each kill."""
    for until in sorted(rng.uniform(0, end) for _ in range(times)):
        if not is_killed(command, store, progress, until, pause or partial(time.sleep, rng.uniform(0, 0.05))):
            return
        yield
    run_json(*command, store=store)


# --- creating --------------------------------------------------------------------------------------


def published(files: ArchiveFolder, made: Made) -> bytes:
    """Return the valid part of `data`: all bytes up to the end of the last archive in the index."""
    if files.index_bytes() is None:
        return b""
    end_bytes = end_of(index_of(files.path.parent, made.community, CABAL_KEY).index)
    return files.data_path.read_bytes()[:end_bytes]


@pytest.mark.thorough
@often
def test_creating_archives_continues_after_kills(made: Made, tmp_path: Path, kills: int) -> None:
    """Published bytes do not change, so that pieces keep their SHA-1 hashes."""
    whole = bytes_of(made.folder, made.community)
    rng = random.Random(kills)
    store = shutil.copytree(made.store, tmp_path / "control")
    killed, tries = 0, itertools.count()
    while killed < kills:
        files = ArchiveFolder(tmp_path / f"made-{next(tries)}" / made.community)
        command = ("create", files.path.parent, "--cabal-key", CABAL_KEY)
        before = b""
        for _ in interrupted(command, store, files.data_size_bytes, len(whole[0]), rng):
            killed += 1
            after = published(files, made)
            assert after.startswith(before)
            assert whole[0].startswith(after)
            before = after
        assert bytes_of(files.path.parent, made.community) == whole
        assert {path.name for path in files.path.iterdir()} == {"data", "index"}
    assert digest(store) == digest(made.store)


# --- fetching and importing ------------------------------------------------------------------------


def a_member(path: Path) -> Path:
    """Create a store with posts that are missing from all archives; imports remove them."""
    with CableStore.open(path) as store:
        store.ingest([post.raw for post in EXTRAS])
    return path


@pytest.fixture(scope="module")
def undisturbed(made: Made, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of a member's store that imported everything without interruption."""
    path = tmp_path_factory.mktemp("undisturbed")
    member, folder = a_member(path / "member"), shutil.copytree(made.folder, path / "made")
    lines = run_json("import", folder, *made.of_member, store=member)
    assert sum(len(line["removed"]) for line in lines) == len(EXTRAS)
    found = digest(member)
    assert found == digest(made.store)
    return found


def assert_whole_weeks(member: Path, made: Made) -> None:
    """Check that each week was imported completely, including removals, or not at all, and that the store is valid."""
    digest(member)
    verified = index_of(made.folder, made.community, CABAL_KEY)
    deletions = {post_hash(raw) for raw in verified.deletions}
    here, expected = (
        {
            hash_: decode_post(raw, LEGACY).timestamp_ms
            for hash_, raw in posts_of(path).items()
            if hash_ not in deletions
        }
        for path in (member, made.store)
    )
    extras = {post.hash: post.timestamp_ms for post in EXTRAS}
    for entry in verified.index.entries:
        found, right, wrong = (
            {hash_ for hash_, at_ms in posts.items() if entry.period.holds(at_ms)} for posts in (here, expected, extras)
        )
        assert found in (right, wrong)


@pytest.mark.thorough("4")
@often
def test_importing_archives_continues_after_kills(made: Made, undisturbed: str, tmp_path: Path, kills: int) -> None:
    """Each archive is imported completely or not at all."""
    rng = random.Random(kills)
    killed, tries = 0, itertools.count()
    while killed < kills:
        number = next(tries)
        member = a_member(tmp_path / f"member-{number}")
        folder = shutil.copytree(made.folder, tmp_path / f"made-{number}")
        command = ("import", folder, *made.of_member)
        for _ in interrupted(command, member, partial(reported_archives, member), WEEKS // 2, rng):
            killed += 1
            assert_whole_weeks(member, made)
        assert digest(member) == undisturbed
        [status] = run_json("status", folder, "--control", made.community, store=member)
        assert status["imported"] == WEEKS + 1


def reported_archives(member: Path) -> int:
    """Return the number of imported archives reported by the present import or the last one that was killed."""
    said = output_of(member)
    return said.read_text().count('"archive"') if said.exists() else 0


@pytest.mark.thorough
@often
def test_fetching_archives_continues_after_kills(made: Made, undisturbed: str, tmp_path: Path, kills: int) -> None:
    """All data is fetched; only data in transit is fetched twice."""
    rng = random.Random(kills)
    killed = 0
    with Seed(made.folder, made.community) as seed:
        for number in itertools.count():
            if killed >= kills:
                break
            fetch = Fetch(made, seed, a_member(tmp_path / f"member-{number}"), tmp_path / f"got-{number}")
            # Kill alternately during the transfer, and after data arrived that was not imported yet.
            killed += (fetch.killed_while_fetching if number % 2 else fetch.killed_after_fetching)(rng)
            assert bytes_of(fetch.got, made.community) == bytes_of(made.folder, made.community)
            assert digest(fetch.member) == undisturbed
            assert not [*fetch.got.glob("*metadata*")]


class Fetch:
    """Member that fetches everything from a seed into a folder and is killed on the way."""

    def __init__(self, made: Made, seed: Seed, member: Path, got: Path) -> None:
        self.made, self.seed, self.member, self.got = made, seed, member, got
        self.size_bytes = sum(map(len, bytes_of(made.folder, made.community)))
        self.moved_before_bytes = 0
        self.missing_before_bytes = self.size_bytes

    def killed_after_fetching(self, rng: random.Random) -> int:
        with Wire(self.seed.port) as wire:
            return self._killed(rng, wire, partial(reported_archives, self.member), WEEKS // 4)

    def killed_while_fetching(self, rng: random.Random) -> int:
        with Wire(self.seed.port, rate_bytes_per_s=2_000_000) as wire:
            progress = partial(getattr, wire, "to_members_bytes")
            return self._killed(rng, wire, progress, self.size_bytes, partial(self._hold_until_written, wire))

    def _hold_until_written(self, wire: Wire) -> None:
        """Block the wire until all received bytes are written, except for incomplete pieces."""
        with wire.held():
            received_bytes = (wire.to_members_bytes - self.moved_before_bytes) / 1.05
            left_bytes = self.missing_before_bytes - received_bytes + LOST_PIECES * PIECE_SIZE_BYTES
            wait_until(lambda: self._missing_bytes() <= left_bytes)

    def _missing_bytes(self) -> int:
        return self.size_bytes - whole_pieces_bytes(self.got, self.made.folder, self.made.community)

    def _killed(
        self,
        rng: random.Random,
        wire: Wire,
        progress: Callable[[], float],
        end: float,
        pause: Callable[[], object] | None = None,
    ) -> int:
        """Fetch everything with some kills, and compare the bytes moved after each kill with those missing before.

        Data in transit at a kill is not counted, because buffers between the wire and the member may hold any part of
        it.

        Returns the number of times that the member was killed.
        """
        command = ("fetch", self.seed.magnet, self.got, *self.made.of_member, "--peer", wire.address)
        killed = 0
        for _ in interrupted(command, self.member, progress, end, rng, times=2, pause=pause):
            killed += 1
            assert_whole_weeks(self.member, self.made)
            self.moved_before_bytes, self.missing_before_bytes = wire.to_members_bytes, self._missing_bytes()
        assert wire.to_members_bytes >= self.size_bytes
        moved_bytes = wire.to_members_bytes - self.moved_before_bytes
        assert moved_bytes < self.missing_before_bytes * 1.05 + PIECE_SIZE_BYTES
        return killed
