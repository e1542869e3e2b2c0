"""Whatever is called, the store for asyncio returns what the blocking one returns, and holds the same."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
from history import AUTHORS, NOW_MS, histories
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from store_calls import READS, Call, blocking_result, call_of, comparable, drafts, method_of

from cablestore import CableStore, Dialect, Post, StoreOptions
from cablestore.aio import AsyncCableStore
from cablestore.errors import CableStoreError


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
