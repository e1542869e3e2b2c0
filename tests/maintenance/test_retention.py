"""Removal of old posts by age and channel while a store is in use, and the list of what `prune` would remove."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from history import AUTHORS, NOW_MS, long_history
from hypothesis import given
from hypothesis import strategies as st
from peering import until
from people import ANN, BOB, raws
from serving import HERE, Served, fetch
from waiting import wait_until

from cablestore import DRAFT8, LEGACY, CableStore, CableStoreError, Dialect, Post, StoreOptions, connect, limits
from cablestore.errors import StorageError, StoreClosedError
from cablestore.maintenance import Maintenance, MaintenancePlan, Retention
from cablestore.store import retention
from cablestore.store.keep_ages import KeepAges
from cablestore.store.options import system_clock_ms

DAY_MS = 86_400_000
ages = st.none() | st.integers(0, 40 * DAY_MS)


@given(ages, st.dictionaries(st.sampled_from(("default", "news", "x")), ages), st.integers(0, 50 * DAY_MS))
def test_each_channel_has_its_age_or_the_default(
    default: int | None, channels: dict[str, int | None], now_ms: int
) -> None:
    keep = KeepAges(default, channels)
    for channel in ("default", "news", "x", "", "another"):
        age_ms = channels.get(channel, default)
        assert keep.oldest_ms(channel, now_ms) == (0 if age_ms is None else max(0, now_ms - age_ms))
        assert keep.all_kept_from_ms(now_ms) >= keep.oldest_ms(channel, now_ms)
    assert bool(keep) == any(age_ms is not None for age_ms in (default, *channels.values()))
    assert keep.of(LEGACY) == keep


def test_channel_names_are_compared_by_the_rules_of_the_dialect() -> None:
    keep = KeepAges(None, {"News": 1_000})
    assert keep.of(DRAFT8).oldest_ms(DRAFT8.channel_id("NEWS"), 5_000) == 4_000
    assert keep.of(LEGACY).oldest_ms("news", 5_000) == 0


def filled(dialect: Dialect, posts: list[Post]) -> CableStore:
    options = StoreOptions(verify_threads=1, clock=lambda: NOW_MS + 1, moderated=False)
    store = CableStore.in_memory(dialect=dialect, identity=AUTHORS[0], options=options)
    store.ingest(raws(*posts), verify=False)
    return store


def removal(store: CableStore, keep: KeepAges, now_ms: int) -> int:
    async def work() -> int:
        found = Retention(store, clock=lambda: now_ms)
        found.change(keep)
        return found.remove_old()

    return asyncio.run(work())


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("seed", range(4))
def test_one_age_for_all_channels_removes_the_same_posts_as_prune(
    monkeypatch: pytest.MonkeyPatch, seed: int, dialect: Dialect
) -> None:
    monkeypatch.setattr(limits, "RETENTION_PAUSE_RATIO", 0.0)
    posts = long_history(random.Random(seed), 150, dialect)
    times = sorted(post.timestamp_ms for post in posts)
    before_ms = times[len(times) // 2]
    with filled(dialect, posts) as one, filled(dialect, posts) as two:
        with one.snapshot() as state:
            listed = retention.summary(state.reader, retention.chosen(state.reader, before_ms, None, None))
        count = one.prune(before_ms=before_ms)
        assert removal(two, KeepAges(before_ms), 2 * before_ms) == count == sum(each.posts for each in listed)
        assert two.dump_digest() == one.dump_digest()
        assert two.check().is_clean
        assert removal(two, KeepAges(before_ms), 2 * before_ms) == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_list_contains_the_posts_that_prune_removes(seed: int) -> None:
    """By channel and type, also if several rules choose the same posts."""
    posts = long_history(random.Random(seed), 150, LEGACY)
    times = sorted(post.timestamp_ms for post in posts)
    before_ms, author = times[len(times) // 3], posts[0].author
    done: list[int] = []
    with filled(LEGACY, posts) as store:
        known = {event.hash: store.get(event.hash) for event in store.events(timeout_s=0)}
        digest = store.dump_digest()
        with store.snapshot() as state:
            chosen = list(retention.chosen(state.reader, before_ms, 2, author))
            found = retention.summary(state.reader, chosen, progress=done.append)
        assert sum(done) == len(chosen)
        assert store.dump_digest() == digest
        count = store.prune(before_ms=before_ms, keep_newest=2, by_author=author)
        gone = [post for key, post in known.items() if post is not None and store.get(key) is None]
    assert {(each.channel, each.type_name): each.posts for each in found} == Counter(
        (post.channel or "", post.type_name) for post in gone
    )
    assert sum(each.posts for each in found) == count
    for each in found:
        dates = [post.timestamp_ms for post in gone if (post.channel or "", post.type_name) == each[:2]]
        assert (each.first_ms, each.last_ms) == (min(dates), max(dates))
    assert found == sorted(found)


def test_posts_dated_at_the_limit_and_the_latest_three_are_kept() -> None:
    texts = [ANN.text("a", f"{at}", at=at) for at in (99, 100)]
    joins = [ANN.join("b", at=at) for at in (98, 99, 100, 101, 102, 103)]
    old = [ANN.join("c", at=at) for at in (1, 2, 3, 4)]
    with filled(LEGACY, [*texts, *joins, *old]) as store, store.snapshot() as state:
        chosen = list(retention.chosen(state.reader, 100, None, None))
    assert chosen == [post.hash for post in (texts[0], *joins[:2], old[0])]


def test_posts_are_removed_at_the_age_of_their_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own posts are removed as others are. Deletions, actions and the latest state stay."""
    monkeypatch.setattr(limits, "RETENTION_PAUSE_RATIO", 0.0)
    days = range(10)
    posts = [ANN.text(channel, f"{day}", at=NOW_MS - day * DAY_MS - 1) for channel in ("a", "b", "c") for day in days]
    gone = BOB.text("a", "gone", at=NOW_MS - 9 * DAY_MS)
    deletion = BOB.delete(gone, at=NOW_MS - 8 * DAY_MS)
    topics = [ANN.topic("a", f"{day}", at=NOW_MS - day * DAY_MS) for day in days]
    names = [BOB.named(f"bob{day}", at=NOW_MS - day * DAY_MS) for day in days]
    options = StoreOptions(verify_threads=1, clock=lambda: NOW_MS - 6 * DAY_MS)
    with CableStore.in_memory(identity=AUTHORS[0], options=options) as store:
        own = store.post("a", "own")
        store.moderation.hide(posts=[own.hash])
        store.ingest(raws(*posts, gone, deletion, *topics, *names))
        keep = KeepAges(2 * DAY_MS, {"b": 5 * DAY_MS, "c": None})
        actions = store.stats().posts["moderation"]
        assert removal(store, keep, NOW_MS)
        left = {
            channel: sorted(int(m.text) for m in store.messages(channel, 100).messages if (m.text or "").isdigit())
            for channel in "abc"
        }
        assert left == {"a": [0, 1], "b": [0, 1, 2, 3, 4], "c": list(days)}
        assert store.get(own.hash) is None
        assert store.get(deletion.hash) is not None
        assert store.stats().posts["moderation"] == actions == 1
        assert all(store.get(post.hash) is not None for post in (topics[0], names[0], topics[2], names[2]))
        assert store.get(topics[5].hash) is None
        assert store.get(names[5].hash) is None
        assert store.check().is_clean


def test_changed_ages_stop_a_removal_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(LEGACY, [ANN.text("default", f"{number}", at=1_000_000 + number) for number in range(100)]) as store:
        removing, discard = Retention(store, clock=lambda: NOW_MS), store.discard

        def change_and_discard(hashes: list[bytes]) -> object:
            removing.change(KeepAges())
            return discard(hashes)

        removing.change(KeepAges(DAY_MS))
        monkeypatch.setattr(store, "discard", change_and_discard)
        assert removing.remove_old() == limits.RETENTION_STEP_POSTS
        assert held(store) == 100 - limits.RETENTION_STEP_POSTS


def test_a_failed_removal_is_logged_once_and_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "RETENTION_EVERY_MS", 1)
    caplog.set_level(logging.INFO, "cablestore.node")
    failure: list[CableStoreError | None] = [StorageError("the disk is full")]
    calls = 0

    def logged() -> list[str]:
        return [record.message for record in caplog.records]

    async def work(store: CableStore) -> None:
        removing, discard = Retention(store, clock=lambda: NOW_MS), store.discard

        def failing(hashes: list[bytes]) -> object:
            nonlocal calls
            calls += 1
            if failure[0] is not None:
                raise failure[0]
            return discard(hashes)

        async def attempts(number: int) -> None:
            before = calls
            await until(lambda: calls >= before + number)

        monkeypatch.setattr(store, "discard", failing)
        removing.change(KeepAges(DAY_MS))
        task = asyncio.create_task(removing.run())
        await attempts(3)
        assert logged() == ["cannot remove old posts"]
        failure[0] = StorageError("the disk is lost")
        await attempts(3)
        assert logged() == ["cannot remove old posts"] * 2
        failure[0] = StoreClosedError("the store is closed")
        await attempts(3)
        assert logged() == ["cannot remove old posts"] * 2
        failure[0] = None
        await until(lambda: "removed old posts" in logged())
        assert (held(store), removing.removed) == (0, 10)
        task.cancel()
        await asyncio.wait([task])

    with filled(LEGACY, [ANN.text("default", f"{number}", at=1_000_000 + number) for number in range(10)]) as store:
        asyncio.run(work(store))


def held(store: CableStore) -> int:
    """Return the number of old texts."""
    return sum((message.text or "").isdigit() for message in store.messages("default", 1000).messages)


def test_an_interrupted_removal_continues(tmp_path: Path) -> None:
    """The store can be read and written between the steps, each of which is small."""
    old = [ANN.text("default", f"{number}", at=1_000_000 + number) for number in range(400)]
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*old), verify=False)

        async def work() -> None:
            plan = MaintenancePlan(None, KeepAges(DAY_MS))
            async with Maintenance(store, plan):
                await until(lambda: held(store) < 400)
                store.post("default", "meanwhile")
            assert held(store) % limits.RETENTION_STEP_POSTS == 0
            assert store.check().is_clean
            async with Maintenance(store, plan):
                await until(lambda: held(store) == 0)

        asyncio.run(work())
        assert [message.text for message in store.messages("default").messages] == ["meanwhile"]
        assert store.check().is_clean


@pytest.mark.parametrize("share", [limits.RETENTION_COMPACT_SHARE, 0.99])
def test_the_disk_space_of_removed_posts_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random, share: float
) -> None:
    """A share of the posts must be removed first, because a compaction rewrites the whole store."""
    monkeypatch.setattr(limits, "RETENTION_COMPACT_SHARE", share)
    monkeypatch.setattr(limits, "RETENTION_PAUSE_RATIO", 0.0)
    now_ms = system_clock_ms()
    ages_ms = [DAY_MS * 10] * 900 + [0] * 100
    with CableStore.open(tmp_path / "store") as store:
        texts = (ANN.text("default", rng.randbytes(500).hex(), at=now_ms - age_ms) for age_ms in ages_ms)
        store.ingest(raws(*texts), verify=False)
        store.compact()

        def disk_size_bytes() -> int:
            return sum(path.stat().st_size for path in (tmp_path / "store").rglob("*.ldb"))

        before_size_bytes = disk_size_bytes()
        assert removal(store, KeepAges(DAY_MS), now_ms) == 900
        assert (disk_size_bytes() < before_size_bytes / 2) == (share <= 0.9)
        assert store.check().is_clean


def test_tables_read_only_by_the_removal_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LevelDB replaces tables during the removal, and keeps the old ones for the state that the removal reads."""
    monkeypatch.setattr(limits, "RETENTION_PAUSE_RATIO", 0.0)
    now_ms = system_clock_ms()
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*(ANN.text("default", f"{n}", at=now_ms - 2 * DAY_MS * (n < 30)) for n in range(1_000))))
        store.compact()
        before = set((tmp_path / "store").rglob("*.ldb"))
        with store.snapshot() as state:
            assert state.get(b"?" * 32) is None
            assert removal(store, KeepAges(DAY_MS), now_ms) == 30
            store.compact()
            assert before & set((tmp_path / "store").rglob("*.ldb")), "the state needs them"
        store.ingest(raws(*(ANN.text("default", f"old {n}", at=now_ms - 2 * DAY_MS) for n in range(10))))
        assert removal(store, KeepAges(DAY_MS), now_ms) == 10
        assert not before & set((tmp_path / "store").rglob("*.ldb"))


def test_posts_are_removed_when_they_become_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETENTION_EVERY_MS", 20)
    now_ms = NOW_MS
    with filled(LEGACY, [ANN.text("default", "1", at=NOW_MS)]) as store:

        async def work() -> None:
            nonlocal now_ms
            plan = MaintenancePlan(None, KeepAges(DAY_MS))
            async with Maintenance(store, plan, clock=lambda: now_ms):
                assert held(store) == 1
                now_ms += 2 * DAY_MS
                await until(lambda: held(store) == 0)

        asyncio.run(work())


def test_serve_applies_changed_ages_after_a_signal(tmp_path: Path, serving: Callable[..., Served]) -> None:
    now_ms = system_clock_ms()
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*(ANN.text("default", str(day), at=now_ms - day * DAY_MS - 1) for day in range(9))))
    file = tmp_path / "serve.toml"
    lines = f'[serve]\nlisten = ["{HERE}"]\nmetrics = "{HERE}"\n'
    file.write_text(lines)
    served = serving(tmp_path / "store", "--config", file)

    def is_removed(expected: int) -> bool:
        return served.metric("cablestore_removed_posts_total") == expected

    assert served.address, "it handles signals"
    assert is_removed(0)
    for keep, expected in (('keep = "6d"', 3), ('keep = "6d"\nkeep-channel = ["default=2d"]', 7)):
        file.write_text(f"{lines}{keep}\n")
        served.process.send_signal(signal.SIGHUP)
        wait_until(partial(is_removed, expected))
    assert [line["changed"] for line in served.logged("settings reloaded")] == [["keep"], ["keep-channel"]]
    assert served.stop() == 0


@pytest.mark.thorough
def test_serve_removes_old_posts_and_does_not_request_them(tmp_path: Path, serving: Callable[..., Served]) -> None:
    now_ms = system_clock_ms()
    dates = [now_ms - day * DAY_MS - 3_600_000 for day in (0, 1, 3, 5, 20)]
    posts = [
        ANN.text(channel, f"{number}", at=at)
        for channel in ("default", "news", "all")
        for number, at in enumerate(dates)
    ]
    for name in ("whole", "small"):
        with CableStore.open(tmp_path / name) as store:
            store.ingest(raws(*posts[: None if name == "whole" else 7]), verify=False)
    whole = serving(tmp_path / "whole", "--listen", HERE)
    words = ("--keep", "2d", "--keep-channel", "news=4d", "--keep-channel", "all=forever", "--metrics", HERE)
    small = serving(tmp_path / "small", "--connect", whole.address, *words)
    wait_until(lambda: fetch(f"http://{small.hear('metrics')}/readyz")[0] == 200)
    expected = {"default": ["0", "1"], "news": ["0", "1", "2"], "all": ["0", "1", "2", "3", "4"]}

    def held() -> dict[str, list[str]]:
        with connect(tmp_path / "small") as store:
            return {name: sorted(m.text or "" for m in store.messages(name).messages) for name in expected}

    wait_until(lambda: held() == expected)
    assert small.metric("cablestore_removed_posts_total") == 3
    received = small.metric("cablestore_posts_in_total")
    assert received == sum(map(len, expected.values())) - 4, "the removed posts are not requested again"
    assert small.stop() == whole.stop() == 0
    with CableStore.open(tmp_path / "small") as store:
        assert store.check().is_clean
