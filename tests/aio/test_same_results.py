"""Equivalence: the store for asyncio returns the same results as the blocking one and leaves the same store."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from history import AUTHORS, NOW_MS, histories
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from people import ANN, BOB, Person, raws
from store_calls import READS, Call, blocking_result, call_of, comparable, drafts, method_of
from waiting import LIMIT_S

from cablestore import DRAFT8, CableStore, Dialect, Post, StoreOptions, limits
from cablestore.aio import AsyncCableStore
from cablestore.errors import CableStoreError

BOB8 = Person("bob", DRAFT8)


async def awaited_result(store: AsyncCableStore, call: Call) -> Any:
    name, args, kwargs = call
    try:
        found = method_of(store, name)(*args, **kwargs)
        if isinstance(found, AsyncIterator):
            return [each async for each in found]
        assert inspect.iscoroutine(found)
        return comparable(await found)
    except CableStoreError as error:
        return type(error), str(error)


def test_all_reads_have_the_results_of_the_blocking_store() -> None:
    posts = [ANN.named("ann"), ANN.join("default"), *(BOB.text("a", f"{at}") for at in range(3)), BOB.topic("a", "t")]

    async def compare(blocking: CableStore) -> None:
        blocking.ingest(raws(*posts, BOB.delete(posts[2])))
        blocking.moderation.hide(users=[BOB.key], channel="default")
        async with AsyncCableStore(blocking) as store:
            for call in READS:
                assert (call, await awaited_result(store, call)) == (call, blocking_result(blocking, call))
            own_acts = await store.moderation.own_acts("hide", BOB.key)
            assert own_acts == blocking.moderation.own_acts("hide", BOB.key) != []
            async with asyncio.timeout(LIMIT_S):
                assert [each async for each in store.moderation.follow(timeout_s=0)] == []
            await store.close()
            assert [each async for each in store.changes()] == []
            assert [each async for each in store.events()] == []

    asyncio.run(compare(CableStore.in_memory(identity=ANN.identity, options=StoreOptions(clock=lambda: NOW_MS))))


@pytest.mark.parametrize("read_only", [False, True])
def test_all_properties_have_the_values_of_the_blocking_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    async def compare() -> None:
        with CableStore.open(tmp_path, dialect=DRAFT8, identity=ANN.identity) as made:
            made.ingest(raws(*(BOB8.text("a", f"{at}") for at in range(3))))
            monkeypatch.setattr(limits, "MAX_BATCH_POSTS", 1)
            made.moderation.drop(users=[BOB8.key])  # which is not removed completely yet
        with CableStore.open(tmp_path, read_only=read_only, identity=ANN.identity) as blocking:
            store = AsyncCableStore(blocking)
            ours = (store.path, store.dialect, store.is_read_only, store.is_closed, store.write_state)
            assert ours == (tmp_path, DRAFT8, read_only, False, blocking.write_state)
            assert store.last_sequence == blocking.last_sequence > 3
            assert (await store.public_key, (await store.identity).public_key) == (ANN.key, ANN.key)
            assert await store.cursor == blocking.cursor
            assert store.moderation.is_sweeping is blocking.moderation.is_sweeping is True
            assert store.moderation.decisions is blocking.moderation.decisions is not None
            assert store.moderation.position == blocking.moderation.position
            async with store.snapshot() as snapshot:
                assert (snapshot.last_sequence, await snapshot.cursor) == (store.last_sequence, await store.cursor)
            store.detach()

    asyncio.run(compare())


@pytest.mark.thorough
@given(history=histories(max_posts=12), chosen=st.lists(drafts, max_size=12))
@settings(max_examples=20, phases=[Phase.generate])
def test_the_same_calls_have_the_same_results_and_leave_the_same_store(
    history: tuple[Dialect, list[Post]], chosen: list[tuple[int, int, int, list[int]]]
) -> None:
    dialect, posts = history
    options: dict[str, Any] = {"dialect": dialect, "identity": AUTHORS[0]}

    async def compare() -> None:
        blocking = CableStore.in_memory(options=StoreOptions(clock=lambda: NOW_MS, verify_threads=1), **options)
        async with AsyncCableStore.in_memory(
            options=StoreOptions(clock=lambda: NOW_MS, verify_threads=1), **options
        ) as store:
            with blocking:
                for call in [*(call_of(draft, posts) for draft in chosen), *READS]:
                    assert (call, await awaited_result(store, call)) == (call, blocking_result(blocking, call))
                assert store.last_sequence == blocking.last_sequence

    asyncio.run(compare())
