"""`archive run` and `archive seed` as services: archives, seeding, announcements, output, and exit status."""

from __future__ import annotations

import json
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from archive_network import CABAL_KEY, HERE, Seed, archive, command, digest, made_store, run_json
from archives import CONTROL, FIRST_MS, archived, plan_of, some_weeks, store_of
from folders import SUPPORT
from people import Person
from serving import HERE as ANY_PORT
from serving import Served, environment
from torrents import session_of
from waiting import LIMIT_S, wait_until

from cablestore import CableStore
from cablestore.archive.errors import IncompleteError
from cablestore.archive.format.period import WEEK_MS, Period, due_after, week_of
from cablestore.archive.local import are_whole
from cablestore.archive.seed import Seeder
from cablestore.archive.torrent.engine import TorrentConfig, TorrentEngine
from cablestore.errors import ArchiveError
from cablestore.limits import PIECE_SIZE_BYTES
from cablestore.protocol.body import TEXT
from cablestore.protocol.dialect import ARCHIVES_CHANNEL
from cablestore.store.options import system_clock_ms

WEEKS = 3
ANN = Person("ann")


class Running:
    """Long-running command with --json during a `with` block. Its output is read line by line."""

    def __init__(self, *arguments: object, of: list[str] | None = None, store: Path | None = None) -> None:
        words = of or command(*arguments, "--json", store=store)
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.end()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _read_errors(self) -> None:
        assert self.process.stderr
        self._errors.extend(self.process.stderr)

    def next_with(self, field: str) -> dict[str, Any]:
        """Return the next line of output that has a field."""
        while line := self._lines.get(timeout=LIMIT_S):
            found: dict[str, Any] = json.loads(line)
            if field in found:
                return found
        raise AssertionError(f"the process ended: {self.end()}")

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Send a signal, if given, and wait for the end. Returns the exit status and the standard error."""
        if number is not None:
            self.process.send_signal(number)
        status = self.process.wait(LIMIT_S)
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe
            pipe.close()
        return status, " ".join("".join(self._errors).split())


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template")
    made_store(path / "control", some_weeks(weeks=WEEKS, per_week=60))
    CableStore.open(path / "member").close()
    return path


@pytest.fixture
def here(template: Path, tmp_path: Path) -> Path:
    for name in ("control", "member"):
        shutil.copytree(template / name, tmp_path / name)
    return tmp_path


def running(here: Path, *more: object) -> Running:
    options = ("--cabal-key", CABAL_KEY, "--listen", f"{HERE}:0")
    return Running("run", here / "made", *options, *more, store=here / "control")


def community_of(here: Path) -> str:
    return next(path.name for path in (here / "made").iterdir() if path.is_dir())


def of_member(community: str) -> tuple[str, ...]:
    return ("--control", community, "--cabal-key", CABAL_KEY)


def status(here: Path, store: str = "control") -> dict[str, Any]:
    [found] = run_json("status", here / "made", *of_member(community_of(here)), store=here / store)
    return found


def announcements(store: Path) -> list[bytes]:
    with CableStore.open(store) as opened:
        own = opened.posts_by(opened.identity.public_key, channel=ARCHIVES_CHANNEL)
        return [post.hash for post in own if post.type == TEXT]


def fetched(here: Path, link: str, port: int, into: str = "got") -> list[dict[str, Any]]:
    peer = ("--peer", f"{HERE}:{port}")
    return run_json("fetch", link, here / into, *of_member(community_of(here)), *peer, store=here / "member")


def late_post(here: Path, words: str) -> None:
    with CableStore.open(here / "control") as store:
        store.ingest([ANN.text("default", words, at=FIRST_MS + 9).raw])


# --- run ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_run_creates_seeds_and_announces_archives_and_continues(here: Path) -> None:
    """The command seeds and announces new archives without a restart."""
    with running(here) as run:
        assert run.next_with("archives")["archives"] == WEEKS
        given = run.next_with("magnet")
        assert run.next_with("announced")["announced"] == given["magnet"]
        now = status(here)
        assert (now["link"], now["is_newest"], now["problem"]) == (given["magnet"], True, None)
        assert (now["seeding"], now["listening"]) == (given["magnet"], f"{HERE}:{given['port']}")
        assert (now["peers"], now["given_bytes"]) == (0, 0)
        assert len(fetched(here, given["magnet"], given["port"])) == WEEKS
        assert status(here)["given_bytes"] > 0
        assert (
            "given bytes"
            in archive("status", here / "made", *of_member(community_of(here)), store=here / "control").stdout
        )

        late_post(here, "late")
        run_json("create", here / "made", "--cabal-key", CABAL_KEY, store=here / "control")
        newer = run.next_with("magnet")
        assert newer["magnet"] != given["magnet"]
        assert run.next_with("announced")["announced"] == newer["magnet"]
        assert len(fetched(here, newer["magnet"], given["port"])) == 2  # the week has two archives
        before = status(here)["given_bytes"]
        assert before > now["given_bytes"]
        assert run.end(signal.SIGTERM) == (0, "")
    made = announcements(here / "control")
    assert len(made) == 2
    gone = status(here)
    assert (gone["seeding"], gone["peers"], gone["given_bytes"], gone["is_newest"]) == (None, None, None, True)
    with running(here) as run:
        assert run.next_with("archives")["archives"] == 0
        assert run.next_with("magnet")["magnet"] == newer["magnet"]
        assert run.end(signal.SIGINT) == (130, "")
    assert announcements(here / "control") == made


@pytest.mark.thorough
def test_an_option_of_run_and_create_omits_hidden_posts(here: Path) -> None:
    with CableStore.open(here / "control") as store:
        hidden = [message.hash for message in store.messages("default", 5).messages]
        store.moderation.hide(posts=hidden)
    [whole] = run_json("create", here / "whole", "--cabal-key", CABAL_KEY, store=here / "control")
    with running(here, "--leave-out-hidden") as run:
        assert run.next_with("archives")["posts"] == whole["posts"] - len(hidden)
        assert run.end(signal.SIGTERM) == (0, "")
    options = ("--cabal-key", CABAL_KEY, "--leave-out-hidden")
    [again] = run_json("create", here / "made", *options, store=here / "control")
    assert again["posts"] == 0


@pytest.mark.thorough
def test_run_works_while_serve_has_the_store_open(here: Path, serving: Callable[..., Served]) -> None:
    """Another process has the store open; it creates and announces the archives."""
    served = serving(here / "control", "--listen", ANY_PORT)
    assert served.address
    with running(here) as run:
        assert run.next_with("archives")["archives"] == WEEKS
        given = run.next_with("magnet")
        assert run.next_with("announced")["announced"] == given["magnet"]
        now = status(here)
        assert (now["link"], now["seeding"]) == (given["magnet"], given["magnet"])
        assert run.end(signal.SIGTERM) == (0, "")
    assert served.stop() == 0
    assert len(announcements(here / "control")) == 1


@pytest.mark.thorough
def test_run_waits_for_a_store_that_another_process_has_open(here: Path) -> None:
    store = CableStore.open(here / "control")
    options = ("--cabal-key", CABAL_KEY, "--listen", f"{HERE}:0")
    words = command("run", here / "made", *options, store=here / "control")
    with Running(of=words) as run:
        wait_until(lambda: "Retrying every 10 s" in " ".join(run._errors))
        store.close()
        assert run._lines.get(timeout=LIMIT_S).startswith(f"created {WEEKS} archives")
        assert run.end(signal.SIGTERM)[0] == 0


@pytest.mark.thorough
def test_run_creates_the_archive_of_a_week_when_the_week_ends(here: Path) -> None:
    """The clock is a few seconds before the time at which the week has settled."""
    settle_ms = 5_000
    with CableStore.open(here / "control") as store:
        due_ms = due_after(system_clock_ms(), settle_ms)
        store.post("default", "of this week")
        week = week_of(system_clock_ms())
    ahead_ms = due_ms - system_clock_ms() - 7_000
    child = SUPPORT / "archive_clock_child.py"
    words = command("run", here / "made", "--cabal-key", CABAL_KEY, "--listen", f"{HERE}:0", "--settle", "5s", "--json")
    words = [sys.executable, str(child), str(ahead_ms), *words[3:], "-s", str(here / "control")]
    with Running(of=words) as run:
        found = [run.next_with("archives")["archives"]]
        first = run.next_with("magnet")
        if found == [WEEKS]:  # otherwise the process started after that time
            found.append(run.next_with("archives")["archives"])
            assert run.next_with("magnet")["magnet"] != first["magnet"]
            run.next_with("announced")
        assert sum(found) == WEEKS + 1
        assert run.end(signal.SIGTERM) == (0, "")
    listed = run_json("list", here / "made", *of_member(community_of(here)))
    assert listed[-1]["from_ms"] == week.from_ms


def test_the_next_week_is_due_after_the_settle_time() -> None:
    for settle_ms in (0, 1_000, 1_800_000, 2 * WEEK_MS):
        for now_ms in (FIRST_MS - 1, FIRST_MS, FIRST_MS + 1, FIRST_MS + settle_ms, FIRST_MS + settle_ms - 1):
            due_ms = due_after(now_ms, settle_ms)
            assert now_ms < due_ms <= now_ms + WEEK_MS
            assert (due_ms - settle_ms - FIRST_MS) % WEEK_MS == 0


@pytest.mark.thorough
def test_run_of_a_new_community_waits_for_its_first_week(tmp_path: Path) -> None:
    CableStore.open(tmp_path / "control").close()
    with running(tmp_path) as run:
        assert run.next_with("archives")["archives"] == 0
        made_store(tmp_path / "control", some_weeks(weeks=1))
        run_json("create", tmp_path / "made", "--cabal-key", CABAL_KEY, store=tmp_path / "control")
        given = run.next_with("magnet")
        assert run.next_with("announced")["announced"] == given["magnet"]
        assert run.end(signal.SIGTERM) == (0, "")


# --- exit ---------------------------------------------------------------------------------------------


def damaged(path: Path) -> None:
    """Overwrite bytes in place; libtorrent detects the change when a peer requests them."""
    with path.open("r+b") as file:
        file.seek(PIECE_SIZE_BYTES // 2)
        file.write(b"other bytes")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def removed(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.thorough
@pytest.mark.parametrize("harm", [damaged, emptied, removed])
def test_run_fails_if_its_folder_can_no_longer_be_seeded(here: Path, harm: Callable[[Path], None]) -> None:
    with running(here) as run:
        given = run.next_with("magnet")
        run.next_with("announced")
        community = community_of(here)
        harm(here / "made" / community / "data")
        options = (
            "--control",
            community,
            "--cabal-key",
            CABAL_KEY,
            "--peer",
            f"{HERE}:{given['port']}",
            "--timeout",
            "2s",
        )
        wait_until(
            lambda: (
                archive("fetch", given["magnet"], here / "got", *options, store=here / "member")
                and run.process.poll() is not None
            )
        )
        ended, said = run.end()
    assert (ended, said.startswith("cablestore: ")) == (3, True), said
    assert "Traceback" not in said


@pytest.mark.thorough
def test_run_fails_if_it_cannot_create_archives(here: Path) -> None:
    """Another profile, a used port and a missing store result in one sentence and exit status 2."""
    run_json("create", here / "made", "--cabal-key", CABAL_KEY, store=here / "control")
    for case, store in ((("--profile", "status-go"), "control"), ((), "nowhere")):
        with Running("run", here / "made", "--listen", f"{HERE}:0", *case, store=here / store) as run:
            ended, said = run.end()
        assert (ended, said.startswith("cablestore: ")) == (2, True), said
    with Seed(here / "made", community_of(here)) as seed:
        done = archive("run", here / "made", "--listen", f"{HERE}:{seed.port}", store=here / "control")
        assert (done.returncode, "Choose another address or port" in done.stderr) == (2, True)


def test_run_fails_if_the_disk_is_full(here: Path) -> None:
    """Files are limited to 150 kB: the first archive does not fit."""
    words = command("run", here / "made", "--listen", f"{HERE}:0", store=here / "control")
    with Running(of=["bash", "-c", 'ulimit -f 150; exec "$@"', "bash", *words]) as run:
        ended, said = run.end()
    assert (ended, "data: File too large" in said) == (3, True), said


def test_a_seed_that_no_longer_listens_fails(here: Path) -> None:
    run_json("create", here / "made", store=here / "control")
    community = community_of(here)
    config = TorrentConfig(enabled=True, port=0, data_folder=here / "made", torrent_folder=here / "made")
    with TorrentEngine(config) as engine:
        seeding = Seeder(engine, community)
        assert not seeding.seed_new()
        session_of(engine).apply_settings({"listen_interfaces": ""})

        def is_noticed() -> bool:
            try:
                seeding.seed_new()
            except ArchiveError as error:
                return "no longer listens" in str(error)
            return False

        wait_until(is_noticed)


# --- seed ---------------------------------------------------------------------------------------------


@pytest.fixture
def partially_fetched(here: Path) -> tuple[Path, str, str]:
    """Return a member's folder that has only the newest week, the community, and the link of all archives."""
    run_json("create", here / "made", "--cabal-key", CABAL_KEY, store=here / "control")
    community = community_of(here)
    with Seed(here / "made", community) as seed:
        peer = ("--peer", f"{HERE}:{seed.port}", "--latest")
        run_json("fetch", seed.magnet, here / "got", *of_member(community), *peer, store=here / "member")
        link = seed.magnet
    return here / "got", community, link


@pytest.mark.thorough
def test_a_partially_fetched_folder_is_not_seeded(partially_fetched: tuple[Path, str, str]) -> None:
    folder, community, _ = partially_fetched
    torrent = folder / f"{community}.torrent"
    before = torrent.read_bytes()
    done = archive("seed", folder, "--community", community, "--listen", f"{HERE}:0")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pieces of {community} missing or damaged in" in done.stderr
    assert torrent.read_bytes() == before
    done = archive("seed", folder, "--community", community, "--listen", f"{HERE}:0", "--cabal-key", CABAL_KEY)
    assert done.returncode == 2
    assert f"2 of {WEEKS} archives missing or damaged: those of the weeks of 2023-11-13, 2023-11-20" in done.stderr
    assert torrent.read_bytes() == before

    torrent.unlink()  # as in a copy of only the folder: the holes show what is missing
    done = archive("seed", folder, "--community", community, "--listen", f"{HERE}:0")
    assert done.returncode == 2
    assert not torrent.exists()


@pytest.mark.parametrize(("weeks", "others"), [(1, ""), (3, ""), (4, " and others")])
def test_the_message_about_missing_archives_mentions_others_only_if_they_exist(
    tmp_path: Path, weeks: int, others: str
) -> None:
    """A week may have several archives."""
    plan, folder = plan_of(), tmp_path / CONTROL.public_key.hex()
    posts = [ANN.text("default", "x", at=FIRST_MS + week * WEEK_MS) for week in range(weeks)]
    late = [ANN.text("default", f"late {n}", at=FIRST_MS + n + 1) for n in range(5)]
    archived(store_of(posts), folder, plan)
    for count in range(len(late)):
        archived(store_of([*posts, *late[: count + 1]]), folder, plan)
    (folder / "data").write_bytes(b"")
    days = [Period(FIRST_MS + week * WEEK_MS, 0).first_day for week in range(min(weeks, 3))]
    with pytest.raises(IncompleteError, match=rf"those of the weeks of {', '.join(days)}{others}\. Fetch all"):
        are_whole(tmp_path, folder.name, None)


@pytest.mark.thorough
def test_a_seed_offers_fetched_archives_once_they_are_complete(
    here: Path, partially_fetched: tuple[Path, str, str]
) -> None:
    """The seed continues with the existing data during a fetch, and then seeds everything without a restart."""
    folder, community, link = partially_fetched
    with Seed(here / "made", community) as source:
        options = ("--listen", f"{HERE}:0", "--cabal-key", CABAL_KEY)
        fetch = ("fetch", link, folder, *of_member(community), "--peer", f"{HERE}:{source.port}")
        run_json(*fetch, store=here / "member")
        with Running("seed", folder, "--community", community, *options) as own:
            given = own.next_with("magnet")
            assert given["magnet"] == link
            late_post(here, "late")
            run_json("create", here / "made", "--cabal-key", CABAL_KEY, store=here / "control")
            newer = json.loads(source.process.stdout.readline())["magnet"]  # type: ignore[union-attr] # it is a pipe
            fetch = ("fetch", newer, folder, *of_member(community), "--peer", f"{HERE}:{source.port}")
            run_json(*fetch, store=here / "member")
            assert own.next_with("magnet")["magnet"] == newer
            assert own.end(signal.SIGTERM) == (0, "")
    assert digest(here / "member") == digest(here / "control")


def test_missing_data_are_detected_without_the_key(tmp_path: Path) -> None:
    """Missing data is found by the torrent file, or by pieces of zeros.

    Zeros are accepted if the caller compared the archives with an index.
    """
    rng_bytes = b"\1" * PIECE_SIZE_BYTES
    folder = tmp_path / "a" / "c0ffee"
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(rng_bytes + bytes(PIECE_SIZE_BYTES) + rng_bytes)
    (folder / "index").write_bytes(b"index")
    config = TorrentConfig(enabled=True, port=0, data_folder=tmp_path / "a", torrent_folder=tmp_path / "t")
    with TorrentEngine(config) as engine:
        with pytest.raises(IncompleteError, match="1 of 3 pieces"):
            engine.seed("c0ffee")
        assert list((tmp_path / "t").iterdir()) == []
        link = engine.seed("c0ffee", is_verified=True)
        engine.check_seed("c0ffee")
    with TorrentEngine(config) as engine:
        assert engine.seed("c0ffee") == link  # the torrent file shows that these zeros are valid
        with pytest.raises(ArchiveError, match="is not seeded"):
            engine.check_seed("beef")
    for wrong in (rng_bytes, rng_bytes * 3, b""):
        (folder / "data").write_bytes(wrong)
        with TorrentEngine(config) as engine, pytest.raises(ArchiveError):
            engine.seed("c0ffee")
    torrent = (tmp_path / "t" / "c0ffee.torrent").read_bytes()
    (folder / "data").write_bytes(
        rng_bytes + bytes(PIECE_SIZE_BYTES) + rng_bytes + rng_bytes
    )  # incomplete, and not in the index
    with TorrentEngine(config) as engine:
        assert engine.seed("c0ffee") == link
    assert (tmp_path / "t" / "c0ffee.torrent").read_bytes() == torrent


# --- status -------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_status_compares_with_the_newest_announced_link(here: Path, partially_fetched: tuple[Path, str, str]) -> None:
    folder, community, link = partially_fetched

    def known(where: Path, store: str) -> dict[str, Any]:
        [found] = run_json("status", where, *of_member(community), store=here / store)
        return found

    assert known(folder, "member")["is_newest"] is None
    run_json("announce", link, store=here / "control")
    with CableStore.open(here / "control") as control, CableStore.open(here / "member") as member:
        member.ingest([post.raw for post in control.posts_by(control.identity.public_key, channel=ARCHIVES_CHANNEL)])
    now = known(folder, "member")
    assert (now["is_newest"], now["missing"], now["problem"]) == (True, WEEKS - 1, None)
    late_post(here, "late")
    run_json("create", here / "made", "--cabal-key", CABAL_KEY, store=here / "control")
    outdated = known(here / "made", "control")
    assert (outdated["is_newest"], outdated["missing"]) == (False, 0)
    assert "Announce the new link" in outdated["problem"]
    with Seed(here / "made", community) as seed:
        run_json("announce", seed.magnet, store=here / "control")
    assert known(here / "made", "control")["is_newest"] is True
    with CableStore.open(here / "control") as control, CableStore.open(here / "member") as member:
        member.ingest([post.raw for post in control.posts_by(control.identity.public_key, channel=ARCHIVES_CHANNEL)])
    behind = known(folder, "member")
    assert (behind["is_newest"], behind["missing"], behind["archives"]) == (False, None, WEEKS)
    assert "Fetch `newest`" in behind["problem"]
