"""The store for asyncio has the methods of the blocking one: names, parameters, results."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type, get_origin, get_type_hints

import pytest
from people import ANN

from cablestore import CableStore, Channel, Event, Identity, Page, Post, Snapshot
from cablestore.aio import AsyncCableStore, AsyncLocalValues, AsyncModerator, AsyncSnapshot
from cablestore.aio.calls import Opening
from cablestore.aio.items import Feed, Items
from cablestore.export import Filters, ImportSummary, Manifest
from cablestore.store.changes import Change, Changes
from cablestore.store.cursor import ChangesCursor
from cablestore.store.local_values import LocalValues
from cablestore.store.moderator import Moderator

PAIRS = [
    (CableStore, AsyncCableStore),
    (Snapshot, AsyncSnapshot),
    (Moderator, AsyncModerator),
    (LocalValues, AsyncLocalValues),
]
OPENING = {"open", "in_memory", "snapshot"}
"""Methods whose result is awaited, or used in an `async with`."""
NO_WAIT = {"watch"}
"""Methods that neither read nor wait."""
LATE = {"Change": Change} | {kind.__name__: kind for kind in (Changes, Filters, ImportSummary, Manifest)}
"""Types whose modules a store imports only when it uses them."""
AWAITED_PROPERTIES = {"identity", "public_key", "cursor"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "async_kind"), PAIRS)
def test_the_asyncio_classes_have_the_same_names(blocking: type, async_kind: type) -> None:
    lacking = sorted(public(blocking) - public(async_kind))
    assert not lacking, f"add to {async_kind.__name__}: " + "".join(
        f"\n    {name} = on_reader({blocking.__name__}.{name})  # or another of cablestore.aio.calls"
        for name in lacking
    )
    assert public(async_kind) - public(blocking) - {"blocking", "detach", "run"} == set()


def test_the_asyncio_store_has_the_same_attributes() -> None:
    async def look() -> set[str]:
        async with AsyncCableStore.in_memory() as store:
            return {name for name in vars(store) if not name.startswith("_")}

    with CableStore.in_memory() as store:
        known = {name for name in vars(store) if not name.startswith("_")}
    assert asyncio.run(look()) == known - {"parts"}  # for packages of cablestore


@pytest.mark.parametrize(("blocking", "async_kind"), PAIRS)
def test_the_asyncio_methods_have_the_same_parameters_and_results(blocking: type, async_kind: type) -> None:
    for name in sorted(public(blocking)):
        compare(blocking, async_kind, name)


def compare(blocking: type, async_kind: type, name: str) -> None:
    known, ours = inspect.getattr_static(blocking, name), inspect.getattr_static(async_kind, name)
    if isinstance(known, property):
        assert isinstance(ours, property)
        if name not in AWAITED_PROPERTIES:
            assert get_type_hints(known.fget)["return"] == get_type_hints(ours.fget)["return"]
        return
    method, ours = getattr(blocking, name), getattr(async_kind, name)
    assert ours.__name__ == name
    wrapped = getattr(ours, "__wrapped__", None)
    assert (name, parameters(ours)) == (name, parameters(method))
    hints, our_hints = get_type_hints(method, None, LATE), get_type_hints(inspect.unwrap(ours), None, LATE)
    result, our_result = hints.pop("return"), our_hints.pop("return")
    assert our_hints == hints
    if wrapped is not None:
        assert wrapped.__name__ == name, "the counterpart of another method"
    if name in OPENING:
        assert wrapped is not None or get_origin(our_result) is Opening
    elif get_origin(result) is Iterator:
        assert not inspect.iscoroutinefunction(ours)
        assert wrapped is not None or issubclass(get_origin(our_result), AsyncIterator)
        assert wrapped is not None or our_result.__args__[0] == result.__args__[0]
    else:
        assert inspect.iscoroutinefunction(ours) is (name not in NO_WAIT)
        assert our_result == result
    assert ours.__doc__


def parameters(method: Any) -> list[tuple[str, object, object]]:
    found = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in found if each.name != "self"]


def test_type_checkers_know_the_types_of_the_asyncio_store() -> None:
    """The type checker, which lint runs, checks the assertions."""

    async def use() -> None:
        opening = AsyncCableStore.in_memory(identity=ANN.identity)
        assert_type(opening, Opening[AsyncCableStore])
        async with opening as store:
            assert_type(store, AsyncCableStore)
            assert_type(await store.post("c", "text", sync=False), Post)
            assert_type(await store.messages("c", 10, newest_first=False), Page)
            assert_type(store.channels(with_reserved=True), Items[Channel])
            assert_type(store.events(), Feed[Event, int])
            assert_type(await store.identity, Identity)
            assert_type(store.changes("c"), Feed[Change, ChangesCursor | None])
            assert_type(await store.local.get("name"), bytes | None)
            async with store.snapshot() as snapshot:
                assert_type(await snapshot.messages("c"), Page)
            with pytest.raises(TypeError):
                await store.post("c")  # type: ignore[call-arg] # tested here
            with pytest.raises(TypeError):
                await store.messages("c", newest=True)  # type: ignore[call-arg] # tested here

    asyncio.run(use())
