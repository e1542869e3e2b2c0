"""A year of real chat: processes create 52 weekly archives and fetch them by torrent; both stores are equal."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from archive_network import Seed, Wire, bytes_of, digest, imported_weeks, run_json
from raku_logs import logs_of

from cablestore import CableStore
from cablestore.archive.format.period import WEEK_MS
from cablestore.irc.importer import import_logs
from cablestore.irc.survey import find_logs

WEEKS = 52
FIRST_MS = int(datetime(2022, 1, 3, tzinfo=UTC).timestamp() * 1000)
"""First Monday of the year."""
FEW = frozenset({"cro", "mugs", "raku-doc", "raku-land", "red"})
CABAL_KEY = "17" * 32


def stored(logs: Path, scratch: Path, path: Path) -> int:
    """Create a store from 52 whole weeks of logs. Returns the number of its posts."""
    files = [log for log in find_logs([logs]) if FIRST_MS <= log.start_ms < FIRST_MS + WEEKS * WEEK_MS]
    with CableStore.open(path) as store:
        import_logs(store, files, seed_phrase="a phrase")
        return sum(store.stats().posts.values())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("channels", "least_posts"),
    [(FEW, 15_000), pytest.param(None, 250_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
    ids=["five channels", "all"],
)
def test_archives_of_a_year_of_real_chat_result_in_equal_stores(
    data: Path, tmp_path: Path, channels: frozenset[str] | None, least_posts: int
) -> None:
    control, member, made, got = (tmp_path / name for name in ("control", "member", "made", "got"))
    posts = stored(logs_of(data, tmp_path / "logs", channels), tmp_path / "scratch", control)
    assert posts > least_posts
    CableStore.open(member).close()
    [created] = run_json("create", made, "--cabal-key", CABAL_KEY, store=control)
    assert (created["archives"], created["posts"], created["oversize"]) == (WEEKS, posts, [])
    community = created["community"]
    of_member = ("--control", community, "--cabal-key", CABAL_KEY)
    listed = run_json("list", made, *of_member)
    assert [row["from_ms"] for row in listed] == [FIRST_MS + week * WEEK_MS for week in range(WEEKS)]
    assert sum(row["posts"] for row in listed) == posts

    with Seed(made, community) as seed, Wire(seed.port) as wire:
        fetch = ("fetch", seed.magnet, got, *of_member, "--peer", wire.address)
        assert imported_weeks(run_json(*fetch, "--latest", store=member)) == [listed[-1]["from_ms"]]
        data_size_bytes = sum(row["size_bytes"] for row in listed)
        index_size_bytes = len(bytes_of(made, community)[1])
        assert wire.to_members_bytes < 1.05 * (listed[-1]["size_bytes"] + index_size_bytes) + 20_000
        lines = run_json(*fetch, store=member)
        assert imported_weeks(lines) == [row["from_ms"] for row in listed[-2::-1]]
        assert wire.to_members_bytes < 1.05 * (data_size_bytes + index_size_bytes) + 20_000
    assert bytes_of(got, community) == bytes_of(made, community)
    assert digest(member) == digest(control)
