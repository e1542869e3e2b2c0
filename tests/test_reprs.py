"""Representations of values in a debugger, a log or a traceback: hashes and keys in hex, and no secrets."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from folders import ROOT
from people import ANN, BOB, raws

import cablestore
from cablestore import DRAFT8, CableStore, Delete, Identity, Info, Outcome, Role, Verdict
from cablestore.archive.format.profile import RFC61
from cablestore.archive.publish import Publisher
from cablestore.archive.writer import ArchivePlan
from cablestore.moderation import Seed, UserRole
from cablestore.peers import Address, Invitation, NodeSettings, Peer
from cablestore.remote.node import NodeState
from cablestore.store.changes import MessageAdded, MessageDeleted, NameChanged

SECRET = bytes(range(100, 132))
SAMPLE = bytes(range(170, 202))
OWN_REPRS = {cablestore.Post, Identity}
"""Types with a custom `__repr__`, which other tests cover."""
SECRET_NAMES = re.compile(r"cabal_key|secret|password|private_key")


@cache
def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(cablestore.__path__, "cablestore.")
    names = [each.name for each in found if not each.name.endswith("__main__")]
    return [importlib.import_module(name) for name in names]


def is_record(value: object) -> bool:
    """Return True for a dataclass or a NamedTuple."""
    return inspect.isclass(value) and (is_dataclass(value) or (issubclass(value, tuple) and hasattr(value, "_fields")))


def every_record() -> list[type]:
    found = {value for module in modules() for value in vars(module).values() if is_record(value)}
    return sorted((each for each in found if each.__module__.startswith("cablestore")), key=name_of)


def documented() -> Iterator[Any]:
    """Yield the values that docs/reference/api.md and the lists of public names contain."""
    for module in modules():
        yield from (getattr(module, name) for name in getattr(module, "__all__", ()))
    yield from (getattr(cablestore, name) for name in cablestore.__all__)
    for path in re.findall(r"^::: (\S+)", (ROOT / "docs/reference/api.md").read_text(), flags=re.MULTILINE):
        package, _, name = path.rpartition(".")
        named = getattr(importlib.import_module(package), name)
        if inspect.ismodule(named):
            yield from (each for each in vars(named).values() if getattr(each, "__module__", "") == path)
        else:
            yield named


def public_records() -> list[type]:
    found = {value for value in documented() if is_record(value) and value.__module__.startswith("cablestore")}
    return sorted(found, key=name_of)


def name_of(record: type) -> str:
    return f"{record.__module__}.{record.__qualname__}"


def types_of(record: type) -> dict[str, str]:
    """Return the names of the fields, with their types as written."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        found |= {
            name: str(kind) for name, kind in inspect.get_annotations(base).items() if "ClassVar" not in str(kind)
        }
    return found


def filled(record: type, values: dict[str, Any]) -> Any:
    """Return a value with these fields and None in all others. No constructor checks them."""
    fields = getattr(record, "_fields", None)
    if fields is not None:
        return tuple.__new__(record, [values.get(name) for name in fields])
    made: Any = object.__new__(record)
    for each in dataclasses.fields(record):
        object.__setattr__(made, each.name, values.get(each.name))
    return made


SHAPES: list[Any] = [
    SAMPLE,
    (SAMPLE,),
    [SAMPLE, SAMPLE],
    {SAMPLE},
    frozenset({SAMPLE}),
    {SAMPLE: SAMPLE},
    (("name", SAMPLE), (1, SAMPLE)),
]


@pytest.mark.parametrize("record", [each for each in public_records() if each not in OWN_REPRS], ids=name_of)
def test_bytes_of_public_values_are_shown_in_hex(record: type) -> None:
    """Bytes may be in any container that a field can hold."""
    left_out = {each.name for each in dataclasses.fields(record) if not each.repr} if is_dataclass(record) else set()
    for name, kind in types_of(record).items():
        if re.search(r"\bbytes\b", kind):
            for shape in SHAPES:
                found = repr(filled(record, {name: shape}))
                assert "\\x" not in found
                assert (SAMPLE.hex() in found) is (name not in left_out)


def test_the_search_finds_the_public_types() -> None:
    names = {record.__name__ for record in public_records()}
    assert names >= {"Post", "Message", "User", "Channel", "Identity", "Page", "Invitation", "NodeSettings", "Event"}
    assert names >= {
        "MessageAdded",
        "MessageDeleted",
        "NameChanged",
        "Joined",
        "Outcome",
        "Tombstone",
        "Effect",
        "Peer",
    }


def secrets_of(record: type) -> list[str]:
    """Return the fields for cabal keys and secret keys. An optional `key` is a cabal key, except in `Peer`."""
    return [
        name
        for name, kind in types_of(record).items()
        if SECRET_NAMES.search(name) or (name == "key" and kind == "bytes | None" and record is not Peer)
    ]


@pytest.mark.parametrize("record", [each for each in every_record() if secrets_of(each)], ids=name_of)
def test_representations_do_not_contain_secrets(record: type) -> None:
    """The test includes internal values: public bug reports contain tracebacks with the values of variables."""
    shown = repr(filled(record, dict.fromkeys(secrets_of(record), SECRET)))
    assert not any(form in shown for form in (repr(SECRET), SECRET.hex(), SECRET.hex()[:8], "defghij"))


@pytest.mark.parametrize(
    "holder",
    [
        NodeSettings(cabal_key=SECRET),
        Invitation(SECRET, (Address("192.0.2.7", 13333),), Seed(((ANN.key, UserRole.ADMIN),), 0).write()),
        NodeState(SECRET),
        ArchivePlan(RFC61, Identity(SECRET), DRAFT8, SECRET),
        Publisher(Identity(SECRET), DRAFT8, SECRET),
        Identity(SECRET),
        [{"settings": NodeSettings(cabal_key=SECRET)}],
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_holders_of_a_key_do_not_print_it(holder: object) -> None:
    for shown in (repr(holder), f"{holder!r}", str([holder])):
        assert not any(form in shown for form in (repr(SECRET), SECRET.hex(), SECRET.hex()[:8], "defghij", "\\x"))


def test_an_identity_shows_its_public_key() -> None:
    assert repr(ANN.identity) == f"Identity(public_key={ANN.key.hex()})"


def test_representations_of_bodies_and_verdicts_are_readable() -> None:
    post = ANN.text("default", "hi")
    assert repr(Delete((post.hash,))) == f"Delete(hashes=({post.hash.hex()},))"
    assert repr(Info.of(name="ann")) == "Info(pairs=(('name', b'ann'),))"
    assert f"recipient={BOB.key.hex()}" in repr(Role("", 0, "", BOB.key, 1))
    outcome = repr(Outcome(post.hash, Verdict.ACCEPTED))
    assert post.hash.hex() in outcome
    assert "Verdict.ACCEPTED" in outcome
    assert "\\x" not in repr(post)


def test_representations_of_returned_values_are_readable(tmp_path: Path) -> None:
    """Complete hashes and keys can be copied. The name of a user without one is the first digits of the key."""
    with CableStore.open(tmp_path / "store") as store:
        cursor = store.cursor
        post = BOB.text("default", "hi")
        store.ingest(raws(post, ANN.named("ann"), ANN.text("default", "hello", links=(post.hash,))))
        page = store.messages("default")
        newest, oldest = page.messages
        user = store.user(BOB.key)
        shown = repr(user)
        assert repr(page).startswith(f"Page(messages=[Message(hash={newest.hash.hex()}, channel='default'")
        assert f"links=({post.hash.hex()},)" in repr(newest)
        assert f"author={BOB.key.hex()}, name='{BOB.key.hex()[:8]}'" in repr(oldest)
        assert shown.startswith(f"User(public_key={BOB.key.hex()}, name='{BOB.key.hex()[:8]}', info=Info(pairs=())")
        assert "role=UserRole.USER" in shown
        store.discard([post.hash])
        changes = list(store.changes("default", cursor, timeout_s=0))
        assert {type(change) for change in changes} >= {MessageAdded, MessageDeleted, NameChanged}
        values = [
            *changes,
            *store.events(timeout_s=0),
            *store.channels(),
            *store.users(),
            store.stats(),
            store.identity,
        ]
        for value in [*values, store.moderation.hide(users=[BOB.key])]:
            assert "\\x" not in repr(value)
