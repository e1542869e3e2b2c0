"""Archives as input of the Spark job: read together with exports, and verified, because they may be foreign."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from archives import CONTROL, FIRST_MS, KEY, LATE_MS, archived, plan_of, some_weeks
from archives import store_of as store_of_weeks
from history import histories
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB
from reindex_tasks import in_dump, job_over, reports_of, rows_of, run_tasks
from reindexing import digest_of, small_shares, spark_session
from s3 import S3Server
from stores import public, scratch_folder, store_of

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Post, StoreOptions
from cablestore.archive.content.community import CidFolder
from cablestore.archive.content.store import ContentStore
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.archive import encode_archive
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.index import encode_index, make_index, signed_index
from cablestore.archive.format.period import WEEK_MS, week_of
from cablestore.archive.format.profile import topics_of
from cablestore.archive.publish import Publisher
from cablestore.archive.writer import ArchivePlan
from cablestore.cli import main
from cablestore.errors import ArchiveError
from cablestore.extras import install_command
from cablestore.files import Location, folder_of
from cablestore.index.tombstone import Skeleton, Tombstone
from cablestore.limits import MAX_FUTURE_MS
from cablestore.protocol.waku import message_of
from cablestore.reindex import archive_input as archives_read
from cablestore.reindex import tasks
from cablestore.reindex.inputs import ArchiveSource, Input
from cablestore.reindex.prepare import read_sources
from cablestore.store.options import system_clock_ms

COMMUNITY = CONTROL.public_key.hex()


def below(folder: Path, posts: Iterable[Post], plan: ArchivePlan) -> ArchiveSource:
    """Create the archives of a store of these posts in a folder."""
    archived(store_of_weeks(posts, plan.dialect), folder / COMMUNITY, plan)
    return ArchiveSource(folder, CONTROL.public_key, plan.key)


def problems_of(inputs: tuple[Input, ...], folder: Location) -> list[str]:
    """Run the task that inspects inputs. Return the problems of the damaged ones."""
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(inputs)), pa.int64())], schema=tasks.NUMBERS)
    return [
        report["problem"]
        for report in reports_of(tasks.inspect(inputs, folder_of(folder))(iter([numbers])))
        if "problem" in report
    ]


# --- equality --------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    histories(),
    st.frozensets(st.integers(0, 23)),
    st.frozensets(st.integers(0, 23)),
    st.sampled_from(["rfc61", "status-go"]),
    st.sampled_from([None, KEY]),
    st.randoms(use_true_random=False),
)
def test_exports_and_archives_create_the_rows_of_a_store_with_all_posts(
    history: tuple[Dialect, list[Post]],
    archived_only: frozenset[int],
    both: frozenset[int],
    profile: str,
    key: bytes | None,
    random: Random,
) -> None:
    """Deletions and their targets are in one of them, in the other, or in both. Archives alone are sufficient."""
    dialect, posts = history[0], public(history[1])
    exported = [post for at, post in enumerate(posts) if at not in archived_only]
    chosen = [post for at, post in enumerate(posts) if at in archived_only | both]
    with scratch_folder() as folder, store_of(dialect, posts) as store:
        sources = [below(folder / "archives", chosen, plan_of(profile, key, dialect))] if chosen else []
        if not chosen or exported:
            with store_of(dialect, exported) as other:
                other.export(folder / "export")
        exports = [folder / "export"] if (folder / "export").exists() else []
        found = read_sources(
            exports, [source for source in sources if (folder / "archives" / COMMUNITY / "index").exists()]
        )
        assert found.dialect == dialect
        assert problems_of(found.inputs, folder / "inspected") == []
        job = replace(job_over(found.inputs, folder / "job", dialect), partitions=random.randint(1, 4))
        assert in_dump(run_tasks(job, random)[0]) == rows_of(store)


@pytest.mark.parametrize("key", [None, KEY], ids=["public", "sealed"])
def test_archives_by_content_id_have_the_same_rows(tmp_path: Path, key: bytes | None) -> None:
    """If a member has both, those of the newer index are read."""
    posts, plan = some_weeks(), plan_of("status-go", key)
    source = below(tmp_path / "archives", posts, plan)
    files = ArchiveFolder(tmp_path / "archives" / COMMUNITY)
    by_cid = CidFolder(files.path)
    by_cid.make()
    with ContentStore.open(tmp_path / "published") as store:
        published = Publisher(CONTROL, LEGACY, key).publish(files, store)
        for cid, _ in store.datasets():
            by_cid.path_of(cid).write_bytes(b"".join(store.get(cid)))
    by_cid.put_index(published.index_cid)
    files.index_path.unlink()
    archived(store_of_weeks(posts), files.path, plan, FIRST_MS + 2 * WEEK_MS)
    inputs = read_sources([], [source]).inputs
    assert all(found.name.startswith(f"{by_cid.path}/") for found in inputs)
    assert problems_of(inputs, tmp_path / "work") == []
    assert in_dump(run_tasks(job_over(inputs, tmp_path / "job"), Random(1))[0]) == rows_of(store_of_weeks(posts))
    gone = Path(inputs[0].name.partition(",")[0])
    gone.unlink()
    (problem,) = problems_of(inputs, tmp_path / "work")
    assert problem.startswith(f"{gone}, archive 0x")
    assert "not found. Fetch the archive first" in problem
    files.index_path.unlink()
    archived(store_of_weeks(posts), files.path, plan)
    by_cid.path_of(published.index_cid).write_bytes(b"damaged")
    with pytest.raises(ArchiveError, match=str(published.index_cid)):
        read_sources([], [source])


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["torrent", "content ids"])
def test_archives_are_read_from_an_object_store(s3: S3Server, tmp_path: Path, form: str) -> None:
    posts, plan = some_weeks(), plan_of("status-go", KEY)
    below(tmp_path / "archives", posts, plan)
    files = ArchiveFolder(tmp_path / "archives" / COMMUNITY)
    community = folder_of(s3.uri(form)).child(COMMUNITY)
    if form == "torrent":
        for path in (files.data_path, files.index_path):
            community.write(path.name, path.read_bytes())
    else:
        content = community.child("content")
        with ContentStore.open(tmp_path / "published") as store:
            published = Publisher(CONTROL, LEGACY, KEY).publish(files, store)
            for cid, _ in store.datasets():
                content.write(str(cid), b"".join(store.get(cid)))
        content.write("index", f"{published.index_cid}\n".encode())
    work = folder_of(s3.uri(f"work of {form}"))
    inputs = read_sources([], [ArchiveSource(s3.uri(form), CONTROL.public_key, KEY)]).inputs
    assert problems_of(inputs, work) == []
    assert in_dump(run_tasks(job_over(inputs, work), Random(1))[0]) == rows_of(store_of_weeks(posts))
    name = "data" if form == "torrent" else inputs[0].name.rpartition("/")[2].partition(",")[0]
    damaged = community if form == "torrent" else community.child("content")
    damaged.write(name, damaged.read(name)[:-1])
    (problem,) = problems_of(inputs, work)
    assert problem.startswith(f"{damaged.file(name)}, archive 0x")


# --- rejections ------------------------------------------------------------------------------------


def test_an_index_is_verified_before_its_archives_are_read(tmp_path: Path) -> None:
    source = below(tmp_path / "archives", some_weeks(), plan_of("status-go", KEY))
    index = tmp_path / "archives" / COMMUNITY / "index"
    read_sources([], [source])
    for other, reason in (
        (replace(source, control_key=ANN.key), "no archives of"),
        (replace(source, cabal_key=None), "Pass the cabal key"),
        (replace(source, cabal_key=bytes(32)), "another cabal key"),
    ):
        with pytest.raises(ArchiveError, match=reason):
            read_sources([], [other])
    stolen = tmp_path / "archives" / ANN.key.hex()
    index.parent.rename(stolen)
    with pytest.raises(ArchiveError, match="is not signed by the control node"):
        read_sources([], [replace(source, control_key=ANN.key)])
    stolen.rename(index.parent)
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    with pytest.raises(ArchiveError, match=f"{index}: cannot decrypt"):
        read_sources([], [source])
    assert KEY.hex() not in repr(source)
    assert repr(KEY) not in repr(source)


def test_a_store_has_one_dialect(tmp_path: Path) -> None:
    with CableStore.in_memory() as store:
        store.export(tmp_path / "export")
    source = below(tmp_path / "archives", some_weeks(DRAFT8), plan_of(dialect=DRAFT8))
    with pytest.raises(ArchiveError, match="A store has one dialect"):
        read_sources([tmp_path / "export"], [source])
    assert read_sources([], [source]).dialect == DRAFT8


@pytest.mark.parametrize("key", [None, KEY], ids=["public", "sealed"])
def test_a_damaged_archive_is_found_and_named(tmp_path: Path, key: bytes | None) -> None:
    source = below(tmp_path / "archives", some_weeks(), plan_of(key=key))
    inputs = read_sources([], [source]).inputs
    data = tmp_path / "archives" / COMMUNITY / "data"
    whole = data.read_bytes()
    assert problems_of(inputs, tmp_path / "inspected") == []
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    data.write_bytes(damaged)
    first, second = problems_of(inputs, tmp_path / "elsewhere"), problems_of(inputs, tmp_path / "inspected")
    assert first == second, "an earlier verification must not hide later damage"
    assert len(first) == 1
    assert f"{data}, archive 0x" in first[0]
    assert "the control node signed" in first[0]
    data.write_bytes(whole[:-1])  # like a member that has not fetched the last one yet
    assert read_sources([], [source]).inputs == inputs
    (problem,) = problems_of(inputs, tmp_path / "inspected")
    assert "is truncated within archive" in problem
    data.unlink()
    assert len(problems_of(inputs, tmp_path / "inspected")) == sum(at.name.startswith(f"{data},") for at in inputs)
    with pytest.raises(Exception, match=str(data)):
        list(inputs[0].blocks())


def test_verified_archives_are_not_verified_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that continues compares the checksums of archives like those of exports."""
    inputs = read_sources([], [below(tmp_path / "archives", some_weeks(), plan_of())]).inputs
    assert problems_of(inputs, tmp_path / "work") == []
    monkeypatch.setattr(archives_read, "are_signed", lambda raws: [False] * len(raws))
    assert problems_of(inputs, tmp_path / "work") == []
    assert len(problems_of(inputs, tmp_path / "other work")) == sum("data, archive" in at.name for at in inputs)


def made_up(folder: Path, posts: list[Post], stones: list[Tombstone]) -> tuple[Input, ...]:
    """Return the archive of a dishonest control node with a week of posts and of tombstones."""
    plan, files = plan_of(), ArchiveFolder(folder / COMMUNITY)
    messages = sorted(map(message_of, posts), key=lambda message: (message.timestamp_ns, message.post_hash))
    topics = topics_of(plan.profile, {message.content_topic for message in messages})
    period = week_of(posts[0].timestamp_ms)
    archive = encode_archive(plan.profile, period, topics, messages, None, stones)
    entry = archive.entry(plan.profile, 0)
    commitment = Commitment(entry.archive_id, archive.sha256, archive.num_posts, archive.merkle_root)
    index = signed_index(make_index(plan.profile, [entry]), [commitment], CONTROL, LEGACY, sealed=False)
    with files.claimed():
        files.append([archive.stored], 0)
        files.write_index(encode_index(index))
    return read_sources([], [ArchiveSource(folder, CONTROL.public_key)]).inputs


def test_invalid_posts_in_archives_stop_the_job(tmp_path: Path) -> None:
    """A control node vouches for others' posts.

    A post that is not signed by its author, or beyond MAX_FUTURE_MS, stops the job.
    """
    right = ANN.text("default", "mine", at=FIRST_MS)
    for number, (raw, reason) in enumerate(
        (
            (BOB.key + right.raw[32:], "is not signed by its author"),
            (ANN.text("default", "?", at=system_clock_ms() + 2 * MAX_FUTURE_MS).raw, "Posts must be dated before"),
        )
    ):
        forged = CableStore.in_memory(options=StoreOptions(clock=lambda: LATE_MS * 2))
        forged.ingest([raw], verify=False)
        (post,) = [forged.get(digest) for digest in forged.find_hashes("", 2)]
        assert post is not None
        inputs = made_up(tmp_path / str(number), [post], [])
        assert reason in problems_of(inputs, tmp_path / f"work {number}")[0]


def test_tombstones_count_only_with_a_matching_deletion(tmp_path: Path) -> None:
    """Other tombstones have no effect. One of an impossible post makes the archive invalid."""
    target, others = ANN.text("default", "gone", at=FIRST_MS), BOB.text("default", "here", at=FIRST_MS + 1)
    deletion = ANN.delete(target, others, at=FIRST_MS + 5)
    bones = Skeleton.of(target)
    stone = Tombstone(target.hash, ANN.key, deletion.timestamp_ms, deletion.hash, bones)
    false_claims = [
        replace(stone, author=BOB.key),
        replace(stone, deleted_at_ms=1),
        replace(stone, deleted_by=bytes(32)),
        replace(stone, target=bytes(32)),
        replace(stone, target=others.hash),  # it is Bob's, whose post is in the store
    ]
    inputs = made_up(tmp_path / "archives", [deletion, others], [stone, *false_claims])
    assert problems_of(inputs, tmp_path / "work") == []
    with store_of(LEGACY, [target, deletion, others]) as store:
        assert in_dump(run_tasks(job_over(inputs, tmp_path / "job"), Random(1))[0]) == rows_of(store)
    for number, impossible in enumerate(
        (
            replace(bones, type=1),
            replace(bones, type=77),
            replace(bones, timestamp_ms=-1),
            replace(bones, channel="x" * 65),
            replace(bones, links=(b"short",)),
        )
    ):
        inputs = made_up(tmp_path / f"{number}", [deletion], [replace(stone, skeleton=impossible)])
        assert "cannot read the tombstones of the archive" in problems_of(inputs, tmp_path / f"work {number}")[0]


def test_without_the_extra_exports_are_read_and_archives_raise_an_error(tmp_path: Path) -> None:
    with CableStore.in_memory() as store:
        store.post("default", "hello")
        store.export(tmp_path / "export")
    program = """
import sys
for name in ("Crypto", "libtorrent"):
    sys.modules[name] = None
from pathlib import Path
from cablestore.errors import ArchiveError
from cablestore.reindex import reindex, tasks
from cablestore.reindex.inputs import ArchiveSource
from cablestore.reindex.prepare import read_sources
print(len(read_sources([Path(sys.argv[1])]).inputs))
try:
    read_sources([], [ArchiveSource(Path(sys.argv[1]), bytes(32))])
except ArchiveError as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "export")], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("1\narchives need ")
    assert install_command("archive", "reindex") in said


# --- on Spark --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with spark_session(tmp_path_factory.mktemp("spark")), small_shares():
        yield


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0) -> dict[str, Any] | str:
    """Run a command. Return the last line of JSON that it prints, or its error if it fails."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert exit_.value.code == status, said.err
    found: dict[str, Any] = {} if status else json.loads(said.out.splitlines()[-1])
    return found or said.err


@pytest.mark.thorough
@pytest.mark.usefixtures("spark")
def test_a_store_is_created_from_exports_and_archives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    posts = some_weeks(weeks=6, per_week=60)
    random = Random(5)
    shares = [[post for post in posts if random.random() < 0.6] for _ in range(3)]
    left = [post for post in posts if not any(post in share for share in shares)]
    with store_of_weeks([*shares[0], *left]) as store:
        store.export(tmp_path / "export", segment_size_bytes=60_000)
    command: list[str | Path] = ["reindex", tmp_path / "export", "--out", tmp_path / "store", "--json"]
    for name, share, plan in (("one", shares[1], plan_of("rfc61", KEY)), ("two", shares[2], plan_of("status-go"))):
        below(tmp_path / name, share, plan)
        command += ["--archives", tmp_path / name, COMMUNITY]
    assert "Pass the cabal key" in run_json(capsys, *command, status=2)
    said = run_json(capsys, *command, "--cabal-key", KEY.hex())
    assert isinstance(said, dict)
    assert said["counts"]["duplicates"] > 50
    assert said["left_out"] == {}
    assert digest_of(tmp_path / "store") == store_of_weeks(posts).dump_digest()


@pytest.mark.thorough
@pytest.mark.usefixtures("spark")
def test_a_damaged_archive_stops_the_job_or_is_omitted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The inputs are only archives. For an existing store, an export of it is also required, to keep its posts."""
    below(tmp_path / "archives", some_weeks(DRAFT8), plan_of(dialect=DRAFT8))
    data = tmp_path / "archives" / COMMUNITY / "data"
    data.write_bytes(data.read_bytes()[:5000] + b"!" + data.read_bytes()[5001:])
    command = ("reindex", "--archives", tmp_path / "archives", COMMUNITY, "--out", tmp_path / "store", "--json")
    error = run_json(capsys, *command, status=2)
    assert f"{data}, archive" in error
    assert "--skip-corrupt" in error
    assert not (tmp_path / "store").exists()
    said = run_json(capsys, *command, "--skip-corrupt", "--drop-channel", "other")
    assert isinstance(said, dict)
    assert [name.startswith(f"{data}, archive") for name in said["left_out"]] == [True]
    assert said["counts"]["dropped: in a channel to drop"] > 20
    with CableStore.open(tmp_path / "store") as store:
        assert store.dialect == DRAFT8
        assert store.check(signatures=True).is_clean
    assert "none of the exports is a complete export of the store" in run_json(capsys, *command, status=2)
