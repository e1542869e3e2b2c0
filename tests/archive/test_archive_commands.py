"""Commands of `cablestore archive`: content ids, stores that are open elsewhere, interruptions, invalid input."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from archive_network import CABAL_KEY, HERE, Seed, Wire, archive, digest, made_store, posts_of, run_json, started
from archives import FIRST_MS, some_weeks
from folders import SUPPORT
from people import Person
from serving import HERE as ANY_PORT
from serving import Served, cablestore
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, Identity, StoreOptions
from cablestore.archive.format.announcement import parse_link
from cablestore.archive.format.cid import CODEC_MANIFEST, Cid
from cablestore.archive.format.period import WEEK_MS, Period
from cablestore.archive.format.profile import Entry
from cablestore.archive.importer import ArchiveImportReport
from cablestore.archive.local import local_archives
from cablestore.archive.member import ANNOUNCEMENT_WAIT_MS, announce
from cablestore.cli.archive_fetch import FetchProgress
from cablestore.cli.output import Output
from cablestore.extras import install_command
from cablestore.protocol.dialect import ARCHIVES_CHANNEL, LEGACY
from cablestore.store.options import system_clock_ms

WEEKS = 4
SECONDS_AGO = 12
KILLS = 4
LOST_BYTES = 150_000
"""Most bytes that a killed fetch may repeat: data already in its files, and a repeated request for a 64 KiB block."""
STRANGER = Identity.derive("archives", "stranger").public_key.hex()
CID = str(Cid(CODEC_MANIFEST, bytes(32)))
NOBODY = f"{HERE}:9"
Run = Callable[..., tuple[int, str, str]]


class Made(NamedTuple):
    """Store of a control node, folder of its archives, its public key, and store of a member."""

    store: Path
    folder: Path
    community: str
    member: Path

    @property
    def of_member(self) -> tuple[str, ...]:
        return ("--control", self.community, "--cabal-key", CABAL_KEY)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template")
    made_store(path / "control", some_weeks(weeks=WEEKS, per_week=150))
    run_json("create", path / "made", "--cabal-key", CABAL_KEY, store=path / "control")
    CableStore.open(path / "member").close()
    return path


@pytest.fixture
def made(template: Path, tmp_path: Path) -> Made:
    for name in ("control", "made", "member"):
        shutil.copytree(template / name, tmp_path / name)
    [community] = [path.name for path in (tmp_path / "made").iterdir()]
    return Made(tmp_path / "control", tmp_path / "made", community, tmp_path / "member")


@contextmanager
def content(folder: Path, *arguments: object, end: int = signal.SIGTERM, status: int = 0) -> Iterator[str]:
    """Run `archive content` during the `with` block; yield its URL and check the exit status."""
    process = started("content", folder, "--listen", f"{HERE}:0", "--json", *arguments)
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        assert line, process.communicate()
        yield json.loads(line)["url"]
    finally:
        process.send_signal(end)
        assert process.communicate(timeout=LIMIT_S) == ("", "")
    assert process.returncode == status


# --- by content id -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_archives_are_published_announced_and_fetched_by_content_id(made: Made, tmp_path: Path) -> None:
    """The announcement is a few seconds too recent for members. They wait before they use it."""
    got = tmp_path / "got"
    with (
        content(tmp_path / "node", end=signal.SIGINT, status=130) as url,
        content(tmp_path / "near", "--upstream", url) as near,
    ):
        done = archive("publish", made.folder, "--node", url, "--cabal-key", CABAL_KEY, store=made.store)
        assert (done.returncode, done.stderr) == (
            0,
            f"uploaded {WEEKS} of {WEEKS} archives, {done.stderr.split(', ')[1]}",
        )
        link = done.stdout.strip()
        assert link.startswith("codex:zDvZRw")
        [again] = run_json("publish", made.folder, "--node", url, "--cabal-key", CABAL_KEY, store=made.store)
        assert again == {"link": link, "archives": WEEKS, "sent": 0, "sent_bytes": 0, "deletions_left_out": []}
        [here] = run_json(
            "publish", made.folder, "--content-folder", tmp_path / "own", "--cabal-key", CABAL_KEY, store=made.store
        )
        assert (here["link"], here["sent"]) == (link, WEEKS)

        earlier_ms = system_clock_ms() - SECONDS_AGO * 1000
        with (
            CableStore.open(made.store, options=StoreOptions(clock=lambda: earlier_ms)) as control,
            CableStore.open(made.member) as member,
        ):
            announce(control, parse_link(link))
            posts = control.posts_by(control.identity.public_key, channel=ARCHIVES_CHANNEL)
            member.ingest([post.raw for post in posts])
        done = archive("fetch", "newest", got, *made.of_member, "--node", near, "--latest", store=made.member)
        assert done.returncode == 0, done.stderr
        assert f"waiting for a newer announcement than {link}" in " ".join(done.stderr.split())
        assert system_clock_ms() >= earlier_ms + ANNOUNCEMENT_WAIT_MS
        assert "week of" in done.stdout
        listed = run_json("list", got, *made.of_member)
        assert [line["size_bytes"] is None for line in listed] == [True] * (WEEKS - 1) + [False]
        assert " - " in archive("list", got, *made.of_member).stdout
        assert "3 damaged or missing" in archive("verify", got, *made.of_member).stdout

        lines = run_json("fetch", "newest", got, *made.of_member, "--node", near, store=made.member)
        assert [line["from_ms"] for line in lines] == [FIRST_MS + week * WEEK_MS for week in range(WEEKS - 2, -1, -1)]
        assert all(line["size_bytes"] > 0 and line["content_id"] for line in lines)
        assert digest(made.member) == digest(made.store)
        assert run_json("verify", got, *made.of_member)[-1]["damaged"] == 0
        assert run_json("fetch", link, got, *made.of_member, "--node", near, store=made.member) == []


@pytest.mark.thorough
def test_both_kinds_of_link_lead_to_the_same_archives(made: Made, tmp_path: Path) -> None:
    """Archives imported from one link are not fetched again from the other. The newer index is shown."""
    got = tmp_path / "got"
    [published] = run_json(
        "publish", made.folder, "--content-folder", tmp_path / "content", "--cabal-key", CABAL_KEY, store=made.store
    )
    with Seed(made.folder, made.community) as seed:
        peer = ("--peer", f"{HERE}:{seed.port}")
        lines = run_json(
            "fetch", seed.magnet, got, *made.of_member, *peer, "--before", "2023-11-27T00:00+00:00", store=made.member
        )
        assert len(lines) == 2
        [before] = run_json("status", got, *made.of_member, store=made.member)
        assert (before["archives"], before["imported"], before["missing"], before["index"]) == (WEEKS, 2, 2, "torrent")
        with content(tmp_path / "content") as url:
            lines = run_json("fetch", published["link"], got, *made.of_member, "--node", url, store=made.member)
            assert [line["from_ms"] for line in lines] == [FIRST_MS + 3 * WEEK_MS, FIRST_MS + 2 * WEEK_MS]
        assert digest(made.member) == digest(made.store)
        assert run_json("fetch", seed.magnet, got, *made.of_member, *peer, store=made.member) == []


@pytest.mark.thorough
def test_status_reports_present_and_missing_archives(made: Made, tmp_path: Path) -> None:
    [nothing] = run_json("status", tmp_path / "got", "--control", made.community, store=made.member)
    assert (nothing["link"], nothing["imported"], nothing["archives"], nothing["problem"]) == (None, 0, None, None)
    [closed] = run_json("status", made.folder, "--control", made.community, store=made.member)
    assert "Pass the cabal key" in closed["problem"]
    [known] = run_json("status", made.folder, *made.of_member, store=made.member)
    listed = run_json("list", made.folder, *made.of_member)
    expected = {
        "archives": WEEKS,
        "imported": 0,
        "missing": WEEKS,
        "posts": sum(line["posts"] for line in listed),
        "size_bytes": sum(line["size_bytes"] for line in listed),
        "last_week": "2023-12-04",
        "last_week_ms": FIRST_MS + 3 * WEEK_MS,
        "is_control": False,
    }
    assert expected.items() <= known.items()
    run_json("import", made.folder, *made.of_member, "--latest", store=made.member)
    [after] = run_json("status", made.folder, *made.of_member, store=made.member)
    assert (after["imported"], after["missing"]) == (1, WEEKS - 1)
    link = f"codex:{CID}"
    run_json("announce", link, store=made.store)
    [control] = run_json("status", made.folder, *made.of_member, store=made.store)
    assert (control["is_control"], control["missing"], control["link"]) == (True, 0, link)
    table = archive("status", made.folder, *made.of_member, store=made.store).stdout
    assert all(text in table for text in (link, "last week", "2023-12-04", "size bytes"))


# --- a store that is open elsewhere --------------------------------------------------------------------


@pytest.mark.thorough
def test_archive_commands_work_on_a_store_that_serve_has_open(
    made: Made, tmp_path: Path, serving: Callable[..., Served]
) -> None:
    """The process with the open store imports. Paths of folders and key files are relative to the command."""
    key = tmp_path / "key"
    key.write_text(CABAL_KEY)
    control, member = serving(made.store, "--listen", ANY_PORT), serving(made.member, "--listen", ANY_PORT)
    assert control.address
    assert member.address
    [created] = run_json("create", tmp_path / "again", "--cabal-key", f"@{key}", store=made.store)
    assert (created["archives"], created["community"]) == (WEEKS, made.community)
    with content(tmp_path / "node") as url:
        [published] = run_json("publish", made.folder, "--node", url, "--cabal-key", f"@{key}", store=made.store)
        run_json("announce", published["link"], store=made.store)
        assert run_json("status", made.folder, *made.of_member, store=made.store)[0]["link"] == published["link"]
        fetched = run_json(
            "fetch", published["link"], tmp_path / "got", *made.of_member, "--node", url, "--latest", store=made.member
        )
    assert len(fetched) == 1
    imported = run_json("import", made.folder, *made.of_member, store=made.member)
    assert len(imported) == WEEKS
    assert (control.stop(), member.stop()) == (0, 0)
    assert posts_of(made.member).keys() == posts_of(made.store).keys() - announcements(made.store)


@pytest.mark.thorough
def test_an_import_beside_serve_has_the_same_result_as_without_it(
    made: Made, tmp_path: Path, serving: Callable[..., Served]
) -> None:
    """A week in two archives, posts missing from them, a deletion of an earlier week, and a damaged archive."""
    late = Person("ann").text("default", "late", at=FIRST_MS + WEEK_MS + 9)
    surplus = [Person("bob").text("default", f"spam {week}", at=FIRST_MS + week * WEEK_MS + 5) for week in range(WEEKS)]
    with CableStore.open(made.store) as store:
        store.ingest([late.raw, Person("ann").delete(late, at=FIRST_MS + (WEEKS - 1) * WEEK_MS + 9).raw])
    run_json("create", made.folder, "--cabal-key", CABAL_KEY, store=made.store)
    with CableStore.open(made.member) as store:
        store.ingest([late.raw, *(post.raw for post in surplus)])
    beside, served_folder = tmp_path / "beside", tmp_path / "folder of beside"
    shutil.copytree(made.member, beside)
    entries = run_json("list", made.folder, *made.of_member)
    data = made.folder / made.community / "data"
    right = data.read_bytes()
    at = sum(entry["size_bytes"] for entry in entries[:2]) + 100
    data.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
    shutil.copytree(made.folder, served_folder)
    served = serving(beside, "--listen", ANY_PORT)
    assert served.address
    for damaged in (True, False):
        if not damaged:
            for folder in (made.folder, served_folder):
                (folder / made.community / "data").write_bytes(right)
        alone = archive("import", made.folder, *made.of_member, "--json", store=made.member)
        found = archive("import", served_folder, *made.of_member, "--json", store=beside)
        assert (found.returncode, found.stdout, found.stderr) == (alone.returncode, alone.stdout, alone.stderr)
        assert found.returncode == damaged
    assert len(entries) == len([line for line in entries if line["archive"]]) > WEEKS
    assert run_json("status", served_folder, *made.of_member, store=beside)[0]["missing"] == 0
    assert served.stop() == 0
    assert digest(beside) == digest(made.member) == digest(made.store)


def announcements(path: Path) -> set[bytes]:
    """Return the hashes of the posts of the control node in the channel of announcements, including its join."""
    with CableStore.open(path) as store:
        return {post.hash for post in store.posts_by(store.identity.public_key, channel=ARCHIVES_CHANNEL)}


@pytest.mark.thorough
def test_a_sync_fetches_announcements_and_their_channel_is_not_listed(
    made: Made, serving: Callable[..., Served]
) -> None:
    run_json("announce", f"codex:{CID}", store=made.store)
    served = serving(made.store, "--listen", ANY_PORT, "--no-follow")
    assert cablestore("sync", served.address, store=made.member).returncode == 0
    assert served.stop() == 0
    assert run_json("status", made.folder, "--control", made.community, store=made.member)[0]["link"] == f"codex:{CID}"
    for store in (made.store, made.member):
        listed = [
            json.loads(line)["channel"] for line in cablestore("channels", "--json", store=store).stdout.splitlines()
        ]
        assert "default" in listed
        assert ARCHIVES_CHANNEL not in listed
        assert f"in {len(listed)} channels" in cablestore("stats", store=store).stdout


# --- interruptions --------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["magnet", "codex", "codex beside serve"])
def test_ctrl_c_ends_a_fetch_cleanly_and_the_same_command_continues(
    made: Made, tmp_path: Path, serving: Callable[..., Served], kind: str
) -> None:
    got = tmp_path / "got"
    served = serving(made.member, "--listen", ANY_PORT) if "serve" in kind else None
    assert served is None or served.address
    [published] = run_json(
        "publish", made.folder, "--content-folder", tmp_path / "content", "--cabal-key", CABAL_KEY, store=made.store
    )
    with Seed(made.folder, made.community) as seed, content(tmp_path / "content", "--name", HERE) as url:
        port = seed.port if kind == "magnet" else int(url.rpartition(":")[2])
        link = seed.magnet if kind == "magnet" else published["link"]
        with Wire(port, rate_bytes_per_s=150_000) as wire:
            source = ("--peer", wire.address) if kind == "magnet" else ("--node", f"http://{wire.address}")
            process = started("fetch", link, got, *made.of_member, *source, store=made.member)
            wait_until(lambda: wire.to_members_bytes > 200_000)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 130
            said = " ".join(errors.split())
            assert said == "interrupted: fetched and imported archives are kept. Run the same command again to resume"
            assert "Traceback" not in output + errors
            before = local_archives(got, bytes.fromhex(made.community), LEGACY, bytes.fromhex(CABAL_KEY))
            assert before is not None
            assert len(before.verified.index.entries) == WEEKS
            wire.rate_bytes_per_s = 0
            run_json("fetch", link, got, *made.of_member, *source, store=made.member)
            size_bytes = sum(line["size_bytes"] for line in run_json("list", made.folder, *made.of_member))
            assert wire.to_members_bytes < size_bytes * 1.1 + 250_000
    assert served is None or served.stop() == 0
    assert digest(made.member) == digest(made.store)


@pytest.mark.thorough
def test_a_fetch_by_content_id_continues_after_kills(made: Made, tmp_path: Path) -> None:
    """A member that is killed with SIGKILL at any time fetches all data.

    Only data in transit or not yet written to its file is fetched twice. Data in transit is not counted, because
    buffers of the system between the wire and the member may hold any part of it.
    """
    got = tmp_path / "got"

    def here_bytes() -> int:
        found = 0
        for path in (got / made.community / "content").glob("*"):
            with suppress(FileNotFoundError):  # it was renamed
                found += path.stat().st_size
        return found

    arguments = ("--content-folder", tmp_path / "content", "--cabal-key", CABAL_KEY)
    [published] = run_json("publish", made.folder, *arguments, store=made.store)
    size_bytes = published["sent_bytes"]
    rng = random.Random(5)
    with (
        content(tmp_path / "content", "--name", HERE) as url,
        Wire(int(url.rpartition(":")[2]), rate_bytes_per_s=400_000) as wire,
    ):
        command = ("fetch", published["link"], got, *made.of_member, "--node", f"http://{wire.address}")
        kept_bytes, moved_bytes = 0, 0
        for until in sorted(rng.uniform(0, size_bytes) for _ in range(KILLS)):
            process = started(*command, store=made.member)
            wait_until(lambda until=until: here_bytes() > until)  # type: ignore[misc]  # mypy does not see the default
            process.kill()
            process.communicate()
            assert here_bytes() > kept_bytes - LOST_BYTES
            kept_bytes, moved_bytes = here_bytes(), wire.to_members_bytes
        wire.rate_bytes_per_s = 0
        run_json(*command, store=made.member)
        assert wire.to_members_bytes - moved_bytes < (size_bytes - kept_bytes) * 1.05 + LOST_BYTES
    assert digest(made.member) == digest(made.store)
    names = {path.name for path in (got / made.community / "content").iterdir()}
    assert len(names) == WEEKS + 2
    assert not [name for name in names if name.startswith(".")]


@pytest.mark.thorough
def test_progress_is_printed_as_json_beside_the_results(made: Made, tmp_path: Path) -> None:
    with Seed(made.folder, made.community) as seed:
        command = ("fetch", seed.magnet, tmp_path / "got", *made.of_member, "--peer", f"{HERE}:{seed.port}", "--json")
        done = archive(*command, store=made.member)
    assert done.returncode == 0
    size_bytes = sum(json.loads(line)["size_bytes"] for line in done.stdout.splitlines())
    last = json.loads(done.stderr.splitlines()[-1])
    assert last == {"archives": WEEKS, "of": WEEKS, "fetched_bytes": size_bytes, "wanted_bytes": size_bytes}


def test_the_last_line_of_progress_counts_imports_after_the_last_byte(capsys: pytest.CaptureFixture[str]) -> None:
    with FetchProgress(Output(as_json=True), archives=2) as progress:
        progress.moved(10, 10)
        for _ in progress.counted(iter([(Entry("week", Period(0, WEEK_MS), ()), ArchiveImportReport())] * 2)):
            pass
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["archives"] for line in lines] == [0, 2]


# --- earlier index during the fetch of a newer one -------------------------------------------------------


@pytest.mark.thorough
def test_earlier_archives_remain_usable_if_a_fetch_fails(made: Made, tmp_path: Path) -> None:
    """A newer index without its archives, an index of another control node, and a link without a seed."""
    got = shutil.copytree(made.folder, tmp_path / "got")
    with CableStore.open(made.store) as store:
        store.ingest([post.raw for post in some_weeks(weeks=WEEKS + 1, per_week=150)], verify=False)
    run_json("create", made.folder, "--cabal-key", CABAL_KEY, store=made.store)
    files = [got / made.community / name for name in ("data", "index")]
    before = [path.read_bytes() for path in files]

    other = tmp_path / "other"
    shutil.copytree(made.folder / made.community, other / made.community)
    (other / made.community / "index").write_bytes(b"nonsense" * 2_000)
    with Seed(other, made.community) as seed:
        done = archive("fetch", seed.magnet, got, *made.of_member, "--peer", f"{HERE}:{seed.port}", store=made.member)
        assert done.returncode == 2
        done = archive(
            "fetch", seed.magnet, got, *made.of_member, "--peer", NOBODY, "--timeout", "1s", store=made.member
        )
    assert [path.read_bytes() for path in files] == before
    assert len(run_json("import", got, *made.of_member, "--latest", store=made.member)) == 1

    with Seed(made.folder, made.community) as seed:
        earliest = ("--before", "2023-11-20T00:00+00:00")
        run_json(
            "fetch", seed.magnet, got, *made.of_member, "--peer", f"{HERE}:{seed.port}", *earliest, store=made.member
        )
    assert len(run_json("list", got, *made.of_member)) == WEEKS + 1
    verified = archive("verify", got, *made.of_member, "--json")
    *problems, last = [json.loads(line) for line in verified.stdout.splitlines()]
    assert (len(problems), last["damaged"], verified.returncode) == (1, 1, 1)
    assert problems[0]["problem"].endswith("not found. Fetch the archive first")
    done = archive("import", got, *made.of_member, store=made.member)
    assert (done.returncode, done.stdout.count("week of")) == (1, WEEKS - 2 + 1)
    assert "1 missing archive. Fetch the archives" in " ".join(done.stderr.split())


@pytest.mark.thorough
def test_a_damaged_archive_is_reported_and_older_weeks_are_imported(made: Made) -> None:
    """`import` and `fetch` return exit status 1. The same command continues after the archive is repaired."""
    data = made.folder / made.community / "data"
    entries = run_json("list", made.folder, *made.of_member)
    at = sum(entry["size_bytes"] for entry in entries[:-1]) + 100
    right = data.read_bytes()
    data.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
    done = archive("import", made.folder, *made.of_member, "--json", store=made.member)
    first, *others = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, first["archive"]) == (1, entries[-1]["archive"])
    assert "SHA-256" in first["problem"]
    assert [line["from_ms"] for line in others] == [entry["from_ms"] for entry in entries[-2::-1]]
    with Seed(made.folder, made.community) as seed:
        peer = ("--peer", f"{HERE}:{seed.port}")
        done = archive("fetch", seed.magnet, made.folder.with_name("got"), *made.of_member, *peer, store=made.member)
        assert done.returncode == 1
        assert "left out 1 damaged archive" in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
    data.write_bytes(right)
    assert len(run_json("import", made.folder, *made.of_member, store=made.member)) == 1
    assert digest(made.member) == digest(made.store)


@pytest.mark.thorough
def test_a_fetch_reports_the_posts_that_a_deletion_removed(made: Made, tmp_path: Path) -> None:
    """The member has all archives; only the index contains the deletion."""
    with CableStore.open(made.store) as store:
        mine = store.post("default", "a word that I regret")
    at = FIRST_MS + WEEK_MS
    regret = Person("ann").text("default", "a word that she regrets", at=at)
    for path in (made.store, made.member):
        with CableStore.open(path) as store:
            store.ingest([regret.raw])
    run_json("create", made.folder, "--cabal-key", CABAL_KEY, store=made.store)
    with Seed(made.folder, made.community) as seed:
        fetch = ("fetch", seed.magnet, tmp_path / "got", *made.of_member, "--peer", f"{HERE}:{seed.port}")
        run_json(*fetch, store=made.member)
    with CableStore.open(made.store) as store:
        assert store.ingest([Person("ann").delete(regret, at=FIRST_MS + WEEKS * WEEK_MS).raw])
        assert store.get(regret.hash) is None
        assert store.get(mine.hash) is not None
    run_json("create", made.folder, "--cabal-key", CABAL_KEY, store=made.store)
    with Seed(made.folder, made.community) as seed:
        fetch = ("fetch", seed.magnet, tmp_path / "got", *made.of_member, "--peer", f"{HERE}:{seed.port}")
        first, *_ = run_json(*fetch, store=made.member)
        assert first == {"deleted_posts": [regret.hash.hex()]}
        assert "deleted_posts" not in str(run_json(*fetch, store=made.member))


# --- invalid input ---------------------------------------------------------------------------------------


def test_bad_input_is_reported_with_a_suggestion(made: Made, tmp_path: Path, run: Run) -> None:
    """Exit status 2, the error, and a suggestion. The store does not change."""
    file, got = tmp_path / "file", tmp_path / "got"
    file.write_text("x")
    magnet = f"magnet:?xt=urn:btih:{'ab' * 20}&dn={made.community}"
    member, own = ("-s", made.member), ("-s", made.store)
    control, quick = ("--control", made.community), ("--timeout", "1s")
    before = digest(made.member)
    cases: list[tuple[tuple[object, ...], str]] = [
        (("fetch", "magnet:?xt=nonsense", got, *control, *member), "magnet link"),
        (("fetch", "http://example.org", got, *control, *member), "invalid link to archives"),
        (("fetch", "codex:nonsense", got, *control, *member), "invalid content id"),
        (("fetch", f"codex:{CID}", got, *control, *member), "Add --node, such as --node"),
        (
            ("fetch", f"codex:{CID}", got, *control, "--node", f"http://{NOBODY}", *quick, *member),
            "Try again later, or use",
        ),
        (("fetch", f"codex:{CID}", got, *control, "--node", "nonsense", *member), "nonsense"),
        (("fetch", "newest", got, *control, *member), "Run `cablestore sync` with a peer first"),
        (("fetch", magnet, got, "--control", "12", *member), "public key"),
        (("fetch", magnet, got, "--control", STRANGER, *quick, *member), f"expected the community {STRANGER}"),
        (("fetch", magnet, got, *control, "--peer", NOBODY, *quick, *member), "add other peers"),
        (("fetch", magnet, got, *control, "--peer", "nonsense", *member), "expected IP:PORT"),
        (("fetch", magnet, got, *control, "--peer", "example.org:1", *member), "invalid IP address"),
        (("fetch", magnet, got, *control, "--tracker", "nonsense", *member), "invalid tracker"),
        (("fetch", magnet, file, *control, *member), "is a file"),
        (("fetch", magnet, file / "below", *control, *member), "one of its folders is a file"),
        (("fetch", magnet, "/proc/none", *control, *member), "Choose another folder"),
        (("fetch", magnet, got, *control, "--timeout", "soon", *member), "invalid duration"),
        (("create", "/proc/none", *own), "Choose another folder"),
        (("list", tmp_path / "nowhere", *control), "Create or fetch archives"),
        (("list", made.folder, *control), "Pass the cabal key"),
        (("list", made.folder, *control, "--cabal-key", "ab" * 32), "another cabal key"),
        (("list", made.folder, *control, "--cabal-key", "12"), "64 hex digits"),
        (("list", made.folder, *control, "--cabal-key", f"@{tmp_path / 'none'}"), "cannot read the cabal key from"),
        (("verify", made.folder, "--control", STRANGER, "--cabal-key", CABAL_KEY), "no archives of"),
        (("import", file, *control, *member), "is a file"),
        (("import", tmp_path / "nowhere", *control, *member), "Create or fetch archives"),
        (("announce", "nonsense", *own), "invalid link to archives"),
        (("announce", magnet, *member), "Announce a link to your own archives"),
        (("publish", made.folder, *own), "cannot publish: use exactly one of"),
        (("publish", made.folder, "--node", f"http://{NOBODY}", "--cabal-key", CABAL_KEY, *own), "does not answer"),
        (
            ("publish", made.folder, "--content-folder", made.store, "--cabal-key", CABAL_KEY, *own),
            "not a content store",
        ),
        (("publish", tmp_path / "nowhere", "--content-folder", tmp_path / "c", *own), "Create the archives first"),
        (("publish", made.folder, "--content-folder", tmp_path / "c", *own), "Pass the cabal key"),
        (("content", file), "is a file"),
        (("content", made.store), "not a content store"),
        (("content", tmp_path / "c", "--listen", "nonsense"), "expected IP:PORT"),
        (("content", tmp_path / "c", "--name", "http://example.org/"), "invalid name"),
        (("content", tmp_path / "c", "--listen", f"{HERE}:99999"), "expected IP:PORT"),
        (("seed", made.folder, "--community", "../x"), "invalid community id"),
        (("seed", made.folder, "--community", STRANGER), "cannot seed"),
    ]
    for arguments, words in cases:
        status, output, errors = run("archive", *arguments)
        said = " ".join((output + errors).split())
        assert status == 2, (arguments, said)
        assert words in said, arguments
        assert "Traceback" not in said
    assert digest(made.member) == before


@pytest.mark.parametrize("name", ["../evil", "AB" * 32, "0xab", "abc"])
def test_an_invalid_community_is_rejected_in_one_line(made: Made, run: Run, name: str) -> None:
    """The command fails before it creates a folder of that name or listens."""
    for folder in (made.folder.parent / "evil", made.folder / "0xab", made.folder / "abc"):
        folder.mkdir()
    options = ("--cabal-key", CABAL_KEY, "--listen", f"{HERE}:0")
    status, output, errors = run("archive", "seed", made.folder, "--community", name, *options)
    assert (status, output, errors.count("\n")) == (2, "", 1), errors
    assert "invalid community id" in errors or "expected the public key of a control node" in errors


@pytest.mark.thorough
def test_a_folder_or_port_in_use_is_reported(made: Made, tmp_path: Path, run: Run) -> None:
    with content(tmp_path / "node") as url:
        port = url.rpartition(":")[2]
        status, _, errors = run("archive", "content", tmp_path / "node", "--listen", f"{HERE}:0")
        assert (status, "is open in process" in errors) == (2, True)
        status, _, errors = run("archive", "content", tmp_path / "other", "--listen", f"{HERE}:{port}")
        assert (status, "cannot listen on" in errors) == (2, True)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with Seed(made.folder, made.community) as seed:
        status, _, errors = run(
            "archive", "seed", made.folder, "--community", made.community, "--listen", f"{HERE}:{seed.port}"
        )
        assert (status, "Choose another address or port" in errors) == (2, True)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.thorough
def test_a_seed_exits_cleanly_on_a_signal(made: Made) -> None:
    for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        process = started("seed", made.folder, "--community", made.community, "--listen", f"{HERE}:0")
        assert process.stdout is not None
        assert process.stdout.readline().startswith("magnet:?")
        process.send_signal(number)
        assert process.communicate(timeout=LIMIT_S) == ("", "")
        assert process.returncode == status


def test_a_missing_extra_is_reported_with_its_install_command(made: Made) -> None:
    """Every command that requires a library names it if it is not installed."""
    hide = "import sys; sys.modules['Crypto'] = None; sys.modules['libtorrent'] = None; from cablestore.cli import main; main(sys.argv[1:])"
    for words in (["list", str(made.folder), "--control", made.community], ["--help"], []):
        command = [sys.executable, "-c", hide, "archive", *words]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        expected_error = f"cablestore: archives need pycryptodome: {install_command('archive')}\n"
        assert (found.returncode, found.stderr) == (2, expected_error)


@pytest.mark.thorough
def test_archives_are_created_beside_a_process_without_the_extra(made: Made) -> None:
    hide = f"import sys, runpy; sys.modules['Crypto'] = None; runpy.run_path({str(SUPPORT / 'control_child.py')!r}, run_name='__main__')"
    command = [sys.executable, "-c", hide, str(made.store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        found = archive("create", made.folder, "--cabal-key", CABAL_KEY, store=made.store)
        assert (found.returncode, found.stderr) == (0, "")
        assert holder.communicate(timeout=LIMIT_S) == (b"", b"")


def test_the_archive_package_is_imported_only_for_its_commands() -> None:
    hide = (
        "import sys; sys.modules['aiohttp'] = None; sys.modules['libtorrent'] = None; from cablestore.cli import main; "
    )
    unused = "assert not [name for name in sys.modules if name.startswith('cablestore.archive')]; "
    command = [sys.executable, "-c", f"{hide}{unused}main(['archive', '--help'])"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr, "  verify  " in found.stdout) == (0, "", True)
