"""Hostile archives, indexes and sizes: commands reject them with a reason, and the store does not change."""

from __future__ import annotations

import hashlib
import resource
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from archive_network import command, digest, posts_of
from archives import CONTROL, FIRST_MS, store_of
from archiving import STRANGER
from hostile import (
    COMMUNITY,
    PIECE,
    WEEKS,
    Made,
    Run,
    a_member,
    four_weeks,
    history,
    left_out,
    left_out_from_seed,
    nothing_was_fetched,
    refused,
    refused_from_folder,
    refused_from_seed,
)
from serving import environment
from torrents import HERE, engine, serving
from waiting import LIMIT_S, wait_until

from cablestore import LEGACY, CableStore, limits
from cablestore.archive.create import create_archives
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.index import encode_index, make_index, verify_index
from cablestore.archive.format.merkle import MerkleTree
from cablestore.archive.format.period import WEEK_MS, Period
from cablestore.archive.format.profile import RFC61, STATUS_GO, Entry, Profile, topics_of, with_id
from cablestore.archive.member import verified_by_any_profile
from cablestore.archive.torrent.metainfo import Metainfo, make_metainfo, piece_sha1
from cablestore.archive.writer import ArchivePlan
from cablestore.errors import ArchiveError
from cablestore.protocol.varint import encode_varint
from cablestore.protocol.waku import content_topic


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return four_weeks(tmp_path / "made")


@pytest.fixture
def member(tmp_path: Path) -> Path:
    return a_member(tmp_path / "member")


def test_the_undamaged_archives_of_these_tests_are_accepted(made: Made, member: Path, run: Run, tmp_path: Path) -> None:
    """Control test: the archives are accepted before the tests below change them."""
    made.sign()
    status, _, errors = run("archive", "import", made.folder.path.parent, "--control", COMMUNITY, "-s", member)
    assert (status, errors) == (0, f"imported {WEEKS} archives: {WEEKS * 10} new posts, {WEEKS} removed\n")
    assert posts_of(member) == {post.hash: post.raw for post in history()}
    CableStore.open(tmp_path / "other").close()
    with engine(made.folder.path.parent) as seed:
        link, peer = seed.seed(COMMUNITY), f"{HERE}:{seed.port}"
        command = ("fetch", link, tmp_path / "got", "--control", COMMUNITY, "--peer", peer)
        assert run("archive", *command, "-s", tmp_path / "other")[0] == 0
    assert posts_of(tmp_path / "other") == posts_of(member)


# --- a forged index --------------------------------------------------------------------------------


def by_a_stranger(made: Made) -> None:
    made.sign(STRANGER)


def not_signed(made: Made) -> None:
    made.folder.write_index(encode_index(make_index(RFC61, made.entries)))


def of_another_community(made: Made) -> None:
    """Replace the archives with valid archives of a stranger, under the name of the control node."""
    shutil.rmtree(made.folder.path)
    store = store_of(history("other"))
    create_archives(store, made.folder, ArchivePlan(RFC61, STRANGER, LEGACY), FIRST_MS + 9 * WEEK_MS)


def with_an_archive_more(made: Made) -> None:
    """Add an archive of a stranger to the control node's commitments."""
    data = made.folder.index_bytes()
    assert data is not None
    made.folder.append([made.folder.stored(made.entries[0])], WEEKS * PIECE)
    more = with_id(RFC61, made.entries[0]._replace(offset_bytes=WEEKS * PIECE))
    signed = verify_index(data, RFC61, CONTROL.public_key, LEGACY, data_size_bytes=(WEEKS + 1) * PIECE).index.signed
    made.folder.write_index(encode_index(make_index(RFC61, (*made.entries, more), signed)))


def with_an_archive_less(made: Made) -> None:
    data = made.folder.index_bytes()
    assert data is not None
    signed = verify_index(data, RFC61, CONTROL.public_key, LEGACY, data_size_bytes=WEEKS * PIECE).index.signed
    made.folder.write_index(encode_index(make_index(RFC61, made.entries[:-1], signed)))


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (by_a_stranger, "not signed by the control node"),
        (not_signed, "is not signed"),
        (of_another_community, "not signed by the control node"),
        (with_an_archive_more, "not among the 4 archives of its statement"),
        (with_an_archive_less, "differ from the 3 archives of the index"),
    ],
)
def test_a_forged_index_is_rejected(
    made: Made, member: Path, run: Run, forge: Callable[[Made], None], reason: str
) -> None:
    forge(made)
    assert reason in refused_from_folder(run, member, made)
    assert reason in refused_from_seed(run, member, made)
    assert nothing_was_fetched(member)
    for reading in ("list", "verify"):
        status, _, errors = run("archive", reading, made.folder.path.parent, "--control", COMMUNITY)
        assert status == 2
        assert reason in errors


# --- archives that differ from the signed ones ------------------------------------------------------


def swapped(made: Made) -> None:
    first, second = made.folder.stored(made.entries[0]), made.folder.stored(made.entries[1])
    made.write(0, second + first)


def swapped_by_the_control_node(made: Made) -> None:
    first, second, *others = made.commitments
    wrong = made._replace(commitments=tuple(others))
    for number, other in ((0, second), (1, first)):
        wrong = wrong._replace(commitments=(*wrong.commitments, stated(made.entries[number].archive_id, other)))
    wrong.sign()


def stated(archive_id: str, other: Commitment) -> Commitment:
    return Commitment(archive_id, other.sha256, other.num_posts, other.merkle_root)


def flipped_at(at_bytes: int) -> Callable[[Made], None]:
    return lambda made: made.flip(at_bytes)


@pytest.mark.parametrize(
    ("damage", "weeks"),
    [
        (swapped, {0, 1}),
        (swapped_by_the_control_node, {0, 1}),
        (flipped_at(100), {0}),
        (flipped_at(PIECE - 1), {0}),
        (flipped_at(PIECE), {1}),
    ],
    ids=["swapped", "swapped by the control node", "first archive", "its padding", "second archive"],
)
def test_an_archive_that_differs_from_the_signed_one_is_not_imported(
    made: Made, member: Path, run: Run, damage: Callable[[Made], None], weeks: set[int]
) -> None:
    """A torrent created from the damaged data passes libtorrent's check. All other weeks are imported."""
    damage(made)
    folder = made.folder.path.parent
    another = a_member(member.with_name("another"))
    for said in (
        left_out(run, member, "import", folder, "--control", COMMUNITY),
        left_out_from_seed(run, another, made),
    ):
        assert said.count("the control node signed") == len(weeks)
    assert run("archive", "verify", folder, "--control", COMMUNITY)[0] == 1

    expected, good = a_member(member.with_name("expected")), four_weeks(member.with_name("good")).folder.path.parent
    for week in set(range(WEEKS)) - weeks:
        alone = ("--after", day_in(week), "--before", day_in(week))
        assert run("archive", "import", good, "--control", COMMUNITY, *alone, "-s", expected)[0] == 0
    assert digest(member) == digest(another) == digest(expected)


def day_in(week: int) -> str:
    """Return a Thursday."""
    return datetime.fromtimestamp((FIRST_MS + week * WEEK_MS) / 1000 + 3 * 86_400, UTC).strftime("%Y-%m-%d")


@pytest.mark.thorough
def test_libtorrent_rejects_bits_that_were_flipped_in_transit(made: Made, member: Path, run: Run) -> None:
    """The torrent is valid; the peer sends wrong pieces."""
    folder = made.folder.path.parent
    with made.folder.data_path.open("rb") as data, made.folder.index_path.open("rb") as index:
        metainfo = make_metainfo(COMMUNITY, data, index)
    for week in range(WEEKS):
        made.flip(week * PIECE + 9)
    with serving(metainfo.torrent(), folder) as port:
        got = member.with_name("got")
        from_peer = ("--control", COMMUNITY, "--peer", f"{HERE}:{port}", "--timeout", "2s")

        def is_banned() -> bool:
            """Fetch until the transfer stalls. On a busy machine, that may be before the first wrong piece arrives."""
            reason = refused(run, member, "fetch", str(metainfo.magnet()), got, *from_peer)
            return "rejected, and their senders banned" in reason

        wait_until(is_banned)


# --- false sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("week", "changes", "reason"),
    [
        (3, {"offset_bytes": WEEKS * PIECE}, "has only"),
        (3, {"size_bytes": 2 * PIECE}, "has only"),
        (3, {"offset_bytes": 2**62 // PIECE * PIECE}, "has only"),
        (0, {"size_bytes": 2 * PIECE}, "overlaps"),
        (1, {"offset_bytes": 0}, "overlaps"),
        (0, {"size_bytes": 2**62 // PIECE * PIECE}, "expected 1 to"),
        (0, {"size_bytes": 0}, "expected 1 to"),
        (2, {"offset_bytes": 1}, "expected whole pieces"),
    ],
    ids=str,
)
def test_a_false_size_or_offset_is_rejected_before_anything_is_fetched(
    made: Made, member: Path, run: Run, week: int, changes: dict[str, int], reason: str
) -> None:
    """The control node itself signed the wrong value."""
    made.change(week, **changes).sign()
    assert reason in refused_from_seed(run, member, made)
    assert nothing_was_fetched(member)


def test_truncated_data_are_rejected(made: Made, member: Path, run: Run) -> None:
    made.folder.data_path.write_bytes(made.folder.data_path.read_bytes()[: 3 * PIECE])
    assert "has only" in refused_from_seed(run, member, made)
    assert nothing_was_fetched(member)


@pytest.mark.parametrize("content", [b"", b"index", bytes(1_000)], ids=["empty", "text", "zeros"])
def test_an_invalid_index_is_rejected(made: Made, member: Path, run: Run, content: bytes) -> None:
    made.folder.index_path.write_bytes(content)
    refused_from_folder(run, member, made)
    if content:
        refused_from_seed(run, member, made)
        assert nothing_was_fetched(member)


# --- bombs -----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 128 MB if this process is permitted to mount one."""
    mount = tmp_path / "disk"
    mount.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(mount)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a file system here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_archives_that_would_fill_the_disk_are_not_fetched(
    made: Made, member: Path, run: Run, small_disk: Path
) -> None:
    """A torrent of 3 GB of zeros with an index that the control node signed."""
    size_bytes = limits.MAX_STORED_ARCHIVE_SIZE_BYTES // PIECE * PIECE
    archives = 24
    bomb = made._replace(entries=(), commitments=())
    for number in range(archives):
        period = Period(FIRST_MS + number * WEEK_MS, FIRST_MS + (number + 1) * WEEK_MS)
        entry = with_id(RFC61, Entry("", period, made.entries[0].topics, number * size_bytes, size_bytes, 0))
        bomb = bomb._replace(
            entries=(*bomb.entries, entry),
            commitments=(*bomb.commitments, stated(entry.archive_id, made.commitments[0])),
        )
    bomb.sign()
    with bomb.folder.data_path.open("wb") as data:
        data.truncate(archives * size_bytes)
    index = bomb.folder.index_path.read_bytes()
    hashes = piece_sha1(bytes(PIECE)) * (archives * size_bytes // PIECE) + piece_sha1(index)
    metainfo = Metainfo(COMMUNITY, archives * size_bytes, len(index), hashes)
    with serving(metainfo.torrent(), bomb.folder.path.parent) as port:
        of_seed = ("--control", COMMUNITY, "--peer", f"{HERE}:{port}", "--timeout", f"{LIMIT_S}s")
        reason = refused(run, member, "fetch", str(metainfo.magnet()), small_disk / "got", *of_seed)
    assert f": {archives * size_bytes:,} bytes and a reserve" in reason
    assert sum(path.stat().st_blocks * 512 for path in small_disk.rglob("*")) < 2_000_000


NESTED = b"\x1b" * 300_000
"""Nested protobuf groups."""


def sized(field: int, size_bytes: int) -> bytes:
    return encode_varint(field << 3 | 2) + encode_varint(size_bytes)


@pytest.mark.thorough("empty entries")
@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (sized(1, 2**62), "is truncated"),
        (sized(1000, 2**31 - 1), "is truncated"),
        (sized(1000, len(NESTED)) + NESTED, "invalid SignedStatement"),
        (b"\x0a\x00" * 5_000_000, "too many archives in the index: the maximum is 65536"),
        (b"\x0a\x00" * 60_000, "is not signed"),
    ],
    ids=["an endless entry", "an endless statement", "a nested statement", "empty entries", "fewer"],
)
def test_an_index_bomb_is_rejected(made: Made, member: Path, run: Run, index: bytes, reason: str) -> None:
    """MAX_INDEX_ARCHIVES: archives are counted before any is decoded."""
    made.folder.index_path.write_bytes(index)
    assert reason in refused_from_folder(run, member, made)
    assert reason in refused_from_seed(run, member, made)
    assert nothing_was_fetched(member)


def test_a_huge_index_is_not_read(made: Made, member: Path, run: Run) -> None:
    """MAX_INDEX_SIZE_BYTES also limits the index in a folder: an index of a terabyte is not opened."""
    with made.folder.index_path.open("r+b") as index:
        index.truncate(2**40)
    assert "MAX_INDEX_SIZE_BYTES" in refused_from_folder(run, member, made)


@pytest.mark.parametrize("is_signed", [False, True], ids=["not signed", "beside a signed statement"])
def test_the_signature_of_an_index_is_checked_before_entries_are_decoded(made: Made, *, is_signed: bool) -> None:
    """An index with the maximum number of topics has six bytes for each; a decoded topic needs a hundred."""
    data = made.folder.index_bytes()
    assert data is not None
    signed = verify_index(data, RFC61, CONTROL.public_key, LEGACY, data_size_bytes=WEEKS * PIECE).index.signed
    names = (content_topic(f"{number:x}") for number in range(limits.MAX_ARCHIVE_TOPICS - 1))
    topics = topics_of(STATUS_GO, names)
    entries = [
        with_id(STATUS_GO, Entry("", Period(week * WEEK_MS, (week + 1) * WEEK_MS), topics, week * PIECE, PIECE))
        for week in range(40)
    ]
    bomb = encode_index(make_index(STATUS_GO, entries, signed if is_signed else None))
    assert len(bomb) > 3_000_000
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveError, match="statement" if is_signed else "is not signed"):
            verified_by_any_profile(bomb, CONTROL.public_key, LEGACY, data_size_bytes=40 * PIECE, key=None)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def whole_pieces(profile: Profile, topics: tuple[str | bytes, ...], tail: bytes, pieces: int) -> bytes:
    """Return a document of this week, followed by `tail` and empty messages up to its end."""
    head = profile.document(Period(FIRST_MS, FIRST_MS + WEEK_MS), topics, []) + tail
    rest = pieces * PIECE - len(head)
    return head + b"\x1a\x00" * ((rest - 3 * (rest % 2)) // 2) + b"\x1a\x01\x00" * (rest % 2)


@pytest.mark.thorough("15 million empty messages")
@pytest.mark.parametrize(
    ("tail", "pieces", "reason"),
    [
        (b"", 300, "contradicts its metadata"),
        (sized(3, 2**62), 1, "is truncated"),
        (sized(3, len(NESTED)) + NESTED, 4, "invalid WakuMessage"),
        (sized(4, 2**31), 1, "is truncated"),
    ],
    ids=["15 million empty messages", "an endless message", "a nested message", "endless padding"],
)
def test_an_archive_bomb_is_not_imported(
    made: Made, member: Path, run: Run, tail: bytes, pieces: int, reason: str
) -> None:
    """The control node itself signed the archive."""
    stored = whole_pieces(RFC61, made.entries[0].topics, tail, pieces)
    assert len(stored) == pieces * PIECE
    put(made, stored, 3)
    before = digest(member)
    assert reason in left_out(run, member, "import", made.folder.path.parent, "--control", COMMUNITY)
    assert reason in left_out_from_seed(run, member, made)
    assert digest(member) == before


def put(made: Made, stored: bytes, num_posts: int) -> None:
    """Replace all archives with one, signed as if it had N posts."""
    made.folder.append([stored], 0)
    first = made.entries[0]
    entry = with_id(RFC61, first._replace(offset_bytes=0, size_bytes=len(stored), padding_bytes=0))
    commitment = Commitment(entry.archive_id, hashlib.sha256(stored).digest(), num_posts, MerkleTree().root())
    made._replace(entries=(entry,), commitments=(commitment,)).sign()


def test_an_archive_with_more_posts_than_signed_is_not_imported(made: Made, member: Path, run: Run) -> None:
    """Posts are counted one by one, not after all are in memory."""
    first = made.commitments[0]
    few = Commitment(first.archive_id, first.sha256, 3, first.merkle_root)
    made._replace(entries=made.entries[:1], commitments=(few,)).sign()
    before = digest(member)
    said = left_out(run, member, "import", made.folder.path.parent, "--control", COMMUNITY)
    assert "contains more posts than the 3" in said
    assert digest(member) == before


@pytest.mark.thorough
def test_a_process_with_little_memory_rejects_a_bomb(made: Made, member: Path) -> None:
    """A process limited to 400 MB rejects an index of 64 MB with an exit status and a reason, without a traceback."""
    made.folder.index_path.write_bytes(sized(1, 60_000_000) + bytes(60_000_000))
    before = digest(member)
    done = subprocess.run(
        command("import", made.folder.path.parent, "--control", COMMUNITY, store=member),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=LIMIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (400_000_000, 400_000_000)),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cablestore: the index")
    assert digest(member) == before
