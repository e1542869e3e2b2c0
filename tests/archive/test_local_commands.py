"""Commands on archives in a folder, in this process: create, list, verify, publish, announce, import, status."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archive_network import made_store
from archives import FIRST_MS, some_weeks

from cablestore import CableStore
from cablestore.archive.format.cid import CODEC_MANIFEST, Cid
from cablestore.archive.format.period import WEEK_MS
from cablestore.cli.seeding_status import FIELDS, SeedingReporter, seeding_now
from cablestore.errors import StorageError

Run = Callable[..., tuple[int, str, str]]

WEEKS = 3


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a control node's store."""
    folder = tmp_path_factory.mktemp("control")
    made_store(folder / "control", some_weeks(weeks=WEEKS, per_week=10))
    return folder


@pytest.fixture
def control(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template / "control", tmp_path / "control")
    return tmp_path / "control"


def lines(found: tuple[int, str, str], status: int = 0) -> list[dict[str, Any]]:
    """Return the lines of JSON that a command printed."""
    assert found[0] == status, found
    return [json.loads(line) for line in found[1].splitlines()]


def test_archives_are_listed_published_announced_and_shown(run: Run, control: Path, tmp_path: Path) -> None:
    made, here = tmp_path / "made", ("-s", control)
    [created] = lines(run("archive", "create", made, "--json", *here))
    of = ("--control", created["community"])
    listed = lines(run("archive", "list", made, *of, "--json"))
    assert [(line["from_ms"], line["size_bytes"] > 0) for line in listed] == [
        (FIRST_MS + week * WEEK_MS, True) for week in range(WEEKS)
    ]
    posts = sum(line["posts"] for line in listed)
    assert run("archive", "verify", made, *of)[:2] == (0, f"{WEEKS} archives, {posts} posts: no problems found\n")

    [before] = lines(run("archive", "status", made, *of, *here, "--json"))
    assert (before["link"], before["is_newest"], before["is_control"]) == (None, None, True)
    assert {name: before[name] for name in ("index", "archives", "missing", "posts", "imported", "problem")} == {
        "index": "torrent", "archives": WEEKS, "missing": 0, "posts": posts, "imported": 0, "problem": None
    }  # fmt: skip
    assert before["size_bytes"] == sum(line["size_bytes"] for line in listed)
    assert before["last_week_ms"] == FIRST_MS + (WEEKS - 1) * WEEK_MS
    assert {before[name] for name in FIELDS} == {None}

    status, link, note = run("archive", "publish", made, "--content-folder", tmp_path / "content", *here)
    assert (status, note.startswith(f"uploaded {WEEKS} of {WEEKS} archives, ")) == (0, True)
    [again] = lines(run("archive", "publish", made, "--content-folder", tmp_path / "content", *here, "--json"))
    assert again == {
        "link": link.strip(), "archives": WEEKS, "sent": 0, "sent_bytes": 0, "deletions_left_out": []
    }  # fmt: skip
    [announced] = lines(run("archive", "announce", link.strip(), *here, "--json"))
    assert len(announced["hash"]) == 64
    assert run("archive", "announce", link.strip(), *here)[1] == "already announced\n"
    [after] = lines(run("archive", "status", made, *of, *here, "--json"))
    assert (after["link"], after["is_newest"], after["problem"]) == (link.strip(), None, None)
    assert after["announced_ms"] > 0
    [other] = lines(run("archive", "announce", f"codex:{Cid(CODEC_MANIFEST, bytes(32))}", *here, "--json"))
    assert other["hash"] != announced["hash"]
    [unknown] = lines(run("archive", "status", made, *of, *here, "--json"))
    assert (unknown["is_newest"], unknown["problem"], unknown["missing"]) == (None, None, 0)


def test_an_import_names_missing_archives_and_status_counts_them(run: Run, control: Path, tmp_path: Path) -> None:
    """The file of the archives is cut short after a member imported the newest archive."""
    member, late = ("-s", tmp_path / "member"), ("-s", tmp_path / "late")
    for _, path in (member, late):
        CableStore.open(path).close()
    made = tmp_path / "made"
    [created] = lines(run("archive", "create", made, "--json", "-s", control))
    of = ("--control", created["community"])
    status, table, _ = run("archive", "status", tmp_path / "nothing", *of, *member)
    fields = {tuple(line.split()) for line in table.splitlines()}
    assert (status, fields >= {("announced", "-"), ("imported", "0"), ("archives", "-"), ("is", "control", "False")}) == (
        0, True
    )  # fmt: skip
    found = run("archive", "list", tmp_path / "nothing", *of)
    assert (found[0], f"no archives of {created['community']} found below" in found[2]) == (2, True)

    [imported] = lines(run("archive", "import", made, *of, *member, "--latest", "--json"))
    assert imported["from_ms"] == FIRST_MS + (WEEKS - 1) * WEEK_MS
    [after] = lines(run("archive", "status", made, *of, *member, "--json"))
    assert (after["imported"], after["missing"], after["is_control"]) == (1, WEEKS - 1, False)

    data = made / created["community"] / "data"
    data.write_bytes(data.read_bytes()[:-1])
    damaged = run("archive", "verify", made, *of)
    assert damaged[0] == 1
    assert damaged[1].splitlines()[-1].endswith("1 damaged or missing. Fetch the archives again")
    status, output, note = run("archive", "import", made, *of, *late)
    assert (status, len(output.splitlines())) == (1, WEEKS)
    assert f"not found below {made}" in output.replace("\n", " ")
    assert note.endswith("\nleft out 1 missing archive. Fetch the archives, then import again\n")


def test_a_process_that_seeds_is_shown_until_it_ends(run: Run, control: Path, tmp_path: Path) -> None:
    made, here = tmp_path / "made", ("-s", control)
    [created] = lines(run("archive", "create", made, "--json", *here))
    folder = made / created["community"]
    said: dict[str, Any] = {"seeding": "magnet:?x", "listening": "127.0.0.1:9025", "peers": 2, "given_bytes": 7}
    problems = [KeyError("first")]

    def report() -> dict[str, Any]:
        if problems:
            raise problems.pop()
        return said

    nothing = dict.fromkeys(FIELDS)
    assert seeding_now(folder) == nothing
    with SeedingReporter(folder, report):
        assert seeding_now(folder) == nothing  # the first report failed
        assert seeding_now(folder) == said
        [shown] = lines(run("archive", "status", made, "--control", created["community"], *here, "--json"))
        assert said.items() <= shown.items()
        said.clear()
        assert seeding_now(folder) == nothing
        with pytest.raises(StorageError):
            SeedingReporter(tmp_path / "missing", report)
    assert seeding_now(folder) == nothing
    assert not [path for path in folder.iterdir() if path.is_socket()]
