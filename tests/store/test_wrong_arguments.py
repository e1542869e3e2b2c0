"""Wrong arguments: every public method raises an error with the expected and the actual value, before any effect.

Methods, parameters and types are read from the classes, so new methods are tested without changes here.
"""

from __future__ import annotations

import asyncio
import collections.abc
import datetime as dt
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from people import ANN, START_MS, raws

import cablestore
from cablestore import CableStore, Identity, Info, Join, Snapshot, StoreOptions, Text
from cablestore.aio import AsyncCableStore
from cablestore.errors import ArgumentError, CableStoreError, CursorError
from cablestore.export import Filters, ImportSummary, Manifest
from cablestore.index.takeover import TakeoverReport
from cablestore.moderation import UserRole
from cablestore.peers import Address, Node
from cablestore.store.changes import Change, Changes
from cablestore.store.closed import ClosedStore
from cablestore.store.moderator import ActOptions

LATE = {kind.__name__: kind for kind in (Changes, Filters, ImportSummary, Manifest, ClosedStore, TakeoverReport)} | {
    "Change": Change
}
"""Types in annotations that a store imports only when it uses them."""
NAIVE = dt.datetime(2024, 1, 2, 3, 4)  # noqa: DTZ001 - wrong on purpose
POST = ANN.text("default", "hello", at=START_MS)  # a fixed time, so that other tests keep their timestamps
HEX = "ab" * 32
AT_LEAST_1 = {"limit", "batch_posts", "segment_size_bytes", "run_size_bytes", "processes", "read_threads", "step_ms"}
AT_LEAST_0 = {"keep_newest", "skew_ms", "verify_threads", "post_type"}
ANY_SIZE = {"value", "raw", "seed", "prefix", "after_key"}
"""Parameters of type bytes that are neither a hash nor a key."""
OF_A_SUBJECT: dict[str, type[CableStoreError]] = {
    "cursor": CursorError,
    "upto": CursorError,
    "seen": CursorError,
    "path": ArgumentError,
    "users": ArgumentError,
}
"""Error classes by parameter. Their messages need not contain the name of the parameter."""
UNCHECKED = {("put_json", "value")}
"""Parameters of any type. Other tests cover values that JSON cannot represent."""
RIGHT: dict[str, Any] = {
    "address": Address("127.0.0.1", 1),
    "after": 0,
    "body": Join("default"),
    "call": print,
    "dialect": cablestore.LEGACY,
    "digest": POST.hash,
    "folders": [],
    "hashes": [POST.hash],
    "hex_digits": "ab",
    "identity": ANN.identity,
    "kind": "hide",
    "links": (),
    "name": "name",
    "post": POST,
    "posts": [],
    "public_key": ANN.key,
    "raw": POST.raw,
    "role": UserRole.MOD,
    "seen": [],
    "step_ms": 1,
    "stones": [],
    "surplus": lambda _: [],
    "target": ANN.key,
    "user": ANN.key,
    "users": [ANN.key],
    "value": b"",
}
"""Valid arguments by parameter name. Other parameters receive a string."""

Call = tuple[str, Callable[..., Any], dict[str, Any], object]
"""A description, the method, valid arguments, and the names that receive wrong values."""


OF_A_TYPE: dict[object, list[Any]] = {
    bytes: [HEX, 5, 1.5, None, [5]],
    str: [b"ab", 5, 1.5, None, [5]],
    bool: ["no", 2, 1.5, None],
    int: ["5", 1.5, True, None, NAIVE],
    dt.datetime: ["5", 1.5, True, None, NAIVE],
    float: ["5", True, None, float("nan"), float("inf"), NAIVE],
    Path: [b"ab", 5, 1.5, None, [5]],
    Literal: ["best", b"ab", 5, None],
    collections.abc.Callable: ["x", 5, None],
    collections.abc.Mapping: ["x", 5, {5: b""}, {"x": "text"}],
}
"""Wrong values by type of the parameter."""
OF_A_NAME: dict[str, list[Any]] = {
    **{name: [0, -1] for name in AT_LEAST_1},
    **{name: [-1] for name in AT_LEAST_0},
    "post_type": [-1, 99],
    "hashes": [[b"ab"], [POST.hash, HEX]],
    "users": [[b"ab"], [ANN.key, HEX]],
}
"""Additional wrong values by name of the parameter."""


def wrong_values(name: str, hint: Any) -> list[Any]:
    """Return wrong values for a parameter of this name and type."""
    hint = getattr(hint, "__supertype__", hint)  # cursors are strings
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return wrong_for_all(name, inner)
    if origin in (collections.abc.Iterable, list, tuple, frozenset):
        return [
            "ab",
            b"x" * 32,
            5,
            None,
            *([value] for value in wrong_values("raw", inner[0])),
            *OF_A_NAME.get(name, []),
        ]
    if hint is bytes and name not in ANY_SIZE:
        return [*OF_A_TYPE[bytes], b"ab", b""]
    known = OF_A_TYPE.get(hint) or OF_A_TYPE.get(origin)
    if known is None:
        assert inspect.isclass(hint), f"add wrong values for {name}: {hint}"
        return ["x", b"x", 5, 1.5, None]
    return known + OF_A_NAME.get(name, [])


def wrong_for_all(name: str, hints: tuple[Any, ...]) -> list[Any]:
    """Return values that are wrong for every type of a union."""
    kinds = [kind for kind in hints if kind is not types.NoneType]
    if bytes in kinds and len(kinds) > 1:
        return [5, 1.5, None]
    lists = [[*map(id, wrong_values(name, kind))] for kind in kinds]
    common = [value for value in wrong_values(name, kinds[0]) if all(id(value) in each for each in lists)]
    return [value for value in common if value is not None or len(kinds) == len(hints)]


def parameters(method: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and types of the parameters of a method, including those of `ActOptions`."""
    hints = typing.get_type_hints(inspect.unwrap(method), None, LATE)
    for each in inspect.signature(method).parameters.values():
        if each.name == "self":
            continue
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            yield from typing.get_type_hints(ActOptions).items()
        else:
            yield each.name, hints[each.name]


def right_arguments(method: Callable[..., Any], folder: Path) -> dict[str, Any]:
    """Return valid arguments for all parameters without a default."""
    found, hints = {}, dict(parameters(method))
    for each in inspect.signature(method).parameters.values():
        if each.name == "self" or each.default is not each.empty or each.kind is each.VAR_KEYWORD:
            continue
        right = RIGHT.get(each.name, 0 if each.name.endswith("_ms") else "default")
        right = (
            "default" if right == 0 and getattr(hints[each.name], "__supertype__", hints[each.name]) is str else right
        )
        found[each.name] = str(folder / each.name) if each.name in ("path", "out") else right
    return found


def methods(subject: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods, except `run`, which passes its arguments to a function."""
    for name in sorted(set(dir(subject)) - {"run"}):
        if not name.startswith("_") and not isinstance(inspect.getattr_static(type(subject), name, None), property):
            method = getattr(subject, name)
            if inspect.isroutine(method):
                yield name, method


def calls(subject: object, folder: Path) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Yield calls with one wrong argument each: a description, the method, and the arguments."""
    for name, method in methods(subject):
        right = right_arguments(method, folder)
        for parameter, hint in parameters(method):
            if (name, parameter) not in UNCHECKED:
                for value in wrong_values(parameter, hint):
                    yield f"{type(subject).__name__}.{name}({parameter}={value!r})", method, right | {parameter: value}


def refused(error: BaseException | None, parameter_call: str) -> str | None:
    """Return a description of a wrong error, None for the expected one."""
    parameter = parameter_call.split("(")[1].split("=", maxsplit=1)[0]
    if isinstance(error, OF_A_SUBJECT.get(parameter, ())):
        return None
    if isinstance(error, ArgumentError) and parameter in str(error):
        return None
    return f"{parameter_call}: {type(error).__name__}: {error}"


def outcome(method: Callable[..., Any], arguments: dict[str, Any]) -> BaseException | None:
    """Return the error of a call. An iterator must raise at the call, except for a wrong element of an iterable."""
    try:
        found = method(**arguments)
        if isinstance(found, Iterator) and any(isinstance(value, list) and value for value in arguments.values()):
            next(found)
    except Exception as error:  # noqa: BLE001 - the caller asserts its class
        return error
    return None


@pytest.fixture
def subjects(tmp_path: Path) -> Iterator[list[object]]:
    with CableStore.open(tmp_path / "store", identity=ANN.identity) as store, store.snapshot() as state:
        store.ingest(raws(POST))
        yield [store, state, store.moderation, store.local, Node(store)]


def test_every_method_rejects_every_wrong_argument(subjects: list[object], tmp_path: Path) -> None:
    store = subjects[0]
    assert isinstance(store, CableStore)
    before, tried = store.last_sequence, 0
    wrong = []
    for subject in subjects:
        for shown, method, arguments in calls(subject, tmp_path):
            if inspect.iscoroutinefunction(method):
                error = outcome(lambda m=method, a=arguments: asyncio.run(m(**a)), {})
            else:
                error = outcome(method, arguments)
            wrong.append(refused(error, shown))
            tried += 1
    assert "\n".join(filter(None, wrong)) == ""
    assert tried > 700
    assert store.last_sequence == before, "a rejected call wrote rows"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"], "a rejected call created files"


def test_every_method_of_a_closed_store_rejects_wrong_arguments(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store", identity=ANN.identity) as store:
        store.ingest(raws(POST))
    closed = ClosedStore(tmp_path / "store")
    before = closed.generations()
    wrong = [refused(outcome(method, arguments), shown) for shown, method, arguments in calls(closed, tmp_path)]
    assert "\n".join(filter(None, wrong)) == ""
    assert wrong
    assert closed.generations() == before


def test_every_awaited_method_rejects_wrong_arguments(tmp_path: Path) -> None:
    async def try_all() -> list[str | None]:
        async with AsyncCableStore.in_memory(identity=ANN.identity) as store, store.snapshot() as state:
            return [
                await one(shown, method, arguments)
                for subject in (store, state, store.moderation, store.local)
                for shown, method, arguments in calls(subject, tmp_path)
                if not shown.startswith("AsyncSnapshot.close")
            ]

    async def one(shown: str, method: Callable[..., Any], arguments: dict[str, Any]) -> str | None:
        try:
            called = method(**arguments)
            await (anext(called) if hasattr(called, "__anext__") else called)
        except Exception as error:  # noqa: BLE001 - `refused` checks its class
            return refused(error, shown)
        return refused(None, shown)

    assert "\n".join(filter(None, asyncio.run(try_all()))) == ""


@pytest.mark.parametrize("function", [cablestore.decode_post, cablestore.encode_post])
def test_the_functions_of_the_package_reject_wrong_arguments(function: Callable[..., Any], tmp_path: Path) -> None:
    right = right_arguments(function, tmp_path)
    for name, hint in parameters(function):
        for value in wrong_values(name, hint):
            shown = f"{function.__name__}({name}={value!r})"
            assert refused(outcome(function, right | {name: value}), shown) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: CableStore("x"),  # type: ignore[arg-type] # wrong on purpose
        CableStore,
        lambda: CableStore(Path("x"), "y"),  # type: ignore[arg-type] # wrong on purpose
        lambda: StoreOptions(clock=5),  # type: ignore[arg-type] # wrong on purpose
        lambda: StoreOptions(catalog="x"),  # type: ignore[arg-type] # wrong on purpose
        lambda: StoreOptions(tuning=5),  # type: ignore[arg-type] # wrong on purpose
        lambda: StoreOptions(verify_threads="2"),  # type: ignore[arg-type] # wrong on purpose
        lambda: StoreOptions(verify_threads=-1),
        lambda: StoreOptions(moderated="no"),  # type: ignore[arg-type] # wrong on purpose
        lambda: StoreOptions(allow_missing_views=1),  # type: ignore[arg-type] # wrong on purpose
        lambda: CableStore.in_memory(options={"clock": 5}),  # type: ignore[arg-type] # wrong on purpose
        lambda: AsyncCableStore("x"),  # type: ignore[arg-type] # wrong on purpose
        lambda: Node("x"),  # type: ignore[arg-type] # wrong on purpose
        lambda: ClosedStore("store", identity=HEX),  # type: ignore[arg-type] # wrong on purpose
        lambda: ClosedStore("store", dialect="legacy"),  # type: ignore[arg-type] # wrong on purpose
        lambda: ClosedStore("store", catalog=[]),  # type: ignore[arg-type] # wrong on purpose
        lambda: ClosedStore("store", read_only="no"),  # type: ignore[arg-type] # wrong on purpose
        lambda: Filters(channels=["a", 5]),  # type: ignore[arg-type] # wrong on purpose
        lambda: Filters(channels="default"),  # type: ignore[arg-type] # wrong on purpose
        lambda: Snapshot("x", "y"),  # type: ignore[arg-type] # wrong on purpose
    ],
)
def test_wrong_constructor_calls_explain_the_right_one(make: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError, match=r"Use|expected"):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda store: store.get(HEX), r"digest: expected 32 bytes, got a str of 64 .*Use bytes.fromhex"),
        (lambda store: store.messages("c", limit=-1), r"limit: expected an integer of at least 1, got -1"),
        (lambda store: store.channels(order="best"), r"order: expected 'name' or 'activity', got 'best'"),
        (lambda store: store.user(b"ab"), r"public_key: expected 32 bytes, got bytes of 2 bytes"),
        (lambda store: store.messages("c", after_ms=NAIVE), r"after_ms: expected milli.*no time zone"),
        (
            lambda store: store.messages("c", after_ms=2, before_ms=1),
            r"before_ms: the time window ends at 1, before .* at 2",
        ),
        (lambda store: store.search("a", after_ms=2, before_ms=1), r"before_ms: the time window ends at 1"),
        (lambda store: store.resolve(ANN.join("c", at=START_MS)), r"post: expected a post/text, not a post/join, got "),
        (lambda store: store.post(b"c", "x"), r"Text.channel: expected a str, got bytes"),
        (lambda store: store.write(Text("c", 5)), r"Text.text: expected a str, got 5 \(int\)"),  # type: ignore[arg-type] # wrong on purpose
        (lambda store: store.moderation.block(ANN.key), r"users: expected an iterable of values"),
        (lambda store: store.topic("\ud800"), r"channel's name .*UTF-8"),
        (
            lambda store: store.delete(POST.hash.hex()),
            r"hashes: expected 32 bytes, got a str of 64 .*Use bytes.fromhex",
        ),
        (
            lambda store: store.delete(POST),
            r"hashes: expected 32 bytes, got .*\.\.\. \(Post\)\. Use its attribute hash",
        ),
        (lambda store: store.delete([POST]), r"hashes \(one of them\): expected 32 bytes.*Use its attribute hash"),
        (lambda store: store.user(store.user(ANN.key)), r"public_key: expected 32 bytes.*Use its attribute public_key"),
        (lambda store: store.moderation.hide(users=["ann"]), r"users \(one of them\): expected 32 bytes, got 'ann'"),
        (
            lambda store: store.moderation.hide(posts=[b"ab"]),
            r"posts \(one of them\): expected 32 bytes, got bytes of 2",
        ),
        (lambda store: store.ingest([POST]), r"posts \(one of them\): expected bytes"),
        (lambda store: store.set_info(others={"x": "text"}), r"others \(the value of 'x'\): expected bytes"),
        (lambda store: store.set_info(name="ann", others={"name": b"bob"}), r"others: .*'name'. Use the argument name"),
        (lambda store: store.set_info(others={"accept-role": None}), r"others: .*Use the argument accept_role"),
        (lambda store: store.write(Info((("name", b"\xff"),))), r"post/info: .*not valid UTF-8"),
    ],
)
def test_messages_name_the_expected_and_the_actual_value(call: Callable[[CableStore], object], message: str) -> None:
    with CableStore.in_memory() as store, pytest.raises(ArgumentError, match=message) as caught:
        call(store)
    assert isinstance(caught.value, CableStoreError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError)


def test_a_cursor_in_place_of_the_channel_is_rejected(tmp_path: Path) -> None:
    """Its changes would never arrive, so the program would wait forever."""

    async def follow() -> None:
        async with AsyncCableStore.open(tmp_path / "store") as store:
            async for _ in store.changes(await store.cursor, timeout_s=0):
                pass

    with pytest.raises(ArgumentError, match=r"channel: .*Pass a cursor as `after`"):
        asyncio.run(follow())
    with CableStore.open(tmp_path / "store") as store, pytest.raises(ArgumentError, match="Pass a cursor as `after`"):
        store.changes(store.cursor)


def test_messages_do_not_contain_secrets() -> None:
    secret = "5e" * 32
    with CableStore.in_memory() as store:
        tries: Iterable[Callable[[], object]] = (
            lambda: store.import_identity(secret),  # type: ignore[arg-type] # wrong on purpose
            lambda: store.import_identity(bytes.fromhex(secret)),  # type: ignore[arg-type] # wrong on purpose
            lambda: CableStore.in_memory(identity=secret),  # type: ignore[arg-type] # wrong on purpose
            lambda: store.user(secret),  # type: ignore[arg-type] # wrong on purpose
            lambda: Identity(secret),  # type: ignore[arg-type] # wrong on purpose
        )
        for attempt in tries:
            with pytest.raises(CableStoreError) as caught:
                attempt()
            assert "5e5e" not in str(caught.value)


def test_integers_of_other_libraries_are_accepted() -> None:
    class Number(IntEnum):
        TWO = 2

    with CableStore.in_memory() as store:
        for text in "abc":
            store.post("default", text)
        assert store.messages("default", Number.TWO, before_ms=Number.TWO).messages == []
        assert len(store.messages("default", Number.TWO).messages) == 2
