"""Displayed state: roles, blocked and hidden members, similar names, channels, connections."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from people import ANN, BOB, Person, raws
from serving import HERE, KEY, Served
from terminals import CTRL_Q, Screen, Start, Terminal
from waiting import wait_until

from cablestore import CableStore
from cablestore.chat.same_names import same_named
from cablestore.moderation import UserRole

Serve = Callable[..., Served]
F7 = "\x1b[18~"
OTHER_KEY = "77" * 32


def open_client(start_chat: Start, *arguments: str) -> tuple[Terminal, Screen]:
    client = start_chat(*arguments)
    screen = Screen(client)
    screen.shows("Write a message")
    return client, screen


DORA, EVE, FRED, FALSE_BOB = (Person(name) for name in ("dora", "eve", "fred", "false bob"))
LOOKS_LIKE_BOB = "b\u043eb"
"""With the Cyrillic letter o."""


def fill(folder: Path) -> str:
    """Create a store with members of all kinds. Returns the key of its user."""
    people = {"bob": BOB, "dora": DORA, "eve": EVE, "fred": FRED, LOOKS_LIKE_BOB: FALSE_BOB}
    with CableStore.open(folder) as store:
        store.join("default")
        for name, person in people.items():
            store.ingest(raws(person.named(name), person.join("default")))
        store.ingest(raws(BOB.text("default", "from one bob"), FALSE_BOB.text("default", "from the other")))
        store.ingest(raws(BOB.text("elsewhere", "not for me")))
        store.moderation.set_role(BOB.key, UserRole.MOD)
        store.moderation.set_role(DORA.key, UserRole.ADMIN)
        store.moderation.hide(users=[EVE.key], private=True)
        store.moderation.block([FRED.key], private=True)
        return store.identity.public_key.hex()


@pytest.mark.thorough("False")
@pytest.mark.parametrize("is_served", [False, True])
def test_members_and_channels_show_their_state(
    start_chat: Start, serving: Serve, tmp_path: Path, is_served: bool
) -> None:
    own_key = fill(tmp_path / "store")
    server = serving(tmp_path / "store", "--listen", HERE) if is_served else None
    if server is not None:
        server.address  # noqa: B018 - it is ready
    client, sees = open_client(start_chat, "-s", "store")
    digits, other_digits = (person.key.hex()[:8] for person in (BOB, FALSE_BOB))
    for line in (
        f"@bob{digits}mod",
        "@doraadmin",
        "evehidden",
        "fredblocked",
        f"{LOOKS_LIKE_BOB}{other_digits}",
        f"{own_key[:8]}you",
        f"bob{digits}fromonebob",
        f"{LOOKS_LIKE_BOB}{other_digits}fromtheother",
        "▸1otherchannel",
    ):
        sees.finds(line)
    assert f"@{own_key[:8]}" not in sees.text
    assert "#elsewhere" not in sees.text

    client.press(F7)
    sees.shows("▾ 1 other channel")
    sees.shows("#elsewhere")
    client.press(F7)
    sees.shows("▸ 1 other channel")
    client.type(f"/unblock {FRED.key.hex()[:16]}")
    wait_until(lambda: "blocked" not in sees.text, lambda: sees.text)
    assert client.end(CTRL_Q) == 0
    assert server is None or server.stop() == 0


@pytest.mark.thorough
def test_only_joined_channels_show_unread_numbers_and_mentions_unfold_the_list(
    start_chat: Start, tmp_path: Path
) -> None:
    with CableStore.open(tmp_path / "store") as store:
        for channel in ("default", "joined"):
            store.join(channel)
        own_digits = store.identity.public_key.hex()[:8]
        store.ingest(raws(BOB.named("bob"), BOB.text("joined", "one"), BOB.text("joined", "two")))
        store.ingest(raws(BOB.text("elsewhere", "three"), BOB.text("calls", f"where is {own_digits}?")))
    client, sees = open_client(start_chat, "-s", "store")
    sees.finds("#joined2")
    sees.finds("▸2otherchannels")
    sees.finds("#calls@1")
    assert "#elsewhere" not in sees.text
    client.press(F7)
    sees.shows("#elsewhere")
    assert "#elsewhere 1" not in " ".join(sees.text.split())
    assert client.end(CTRL_Q) == 0


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ann", "ann"),
        ("ann", "Ann "),
        ("bob", LOOKS_LIKE_BOB),
        ("paypal", "\u0440\u0430\u0443\u0440\u0430l"),
        ("apple", "\u0430\u0440\u0440\u04cf\u0435"),
        ("modern", "modem"),
        ("Bill", "BilI"),
        ("ann1", "annl"),
        ("O0", "OO"),
        ("ann", "\uff41\uff4e\uff4e"),
        ("ann", "a\u200bnn"),
        ("ann", "ann\u3164"),
        ("ann", "ann\ufe0f"),
        ("J\u00f6rg", "Jo\u0308rg"),
        ("ann", f"ann {ANN.key.hex()[:8]}"),
        (EVE.key.hex()[:8], EVE.key.hex()[:8]),
    ],
)
def test_similar_names_are_detected(name: str, other: str) -> None:
    assert same_named({b"1": name, b"2": other, b"3": "somebody else"}) == {b"1", b"2"}


@pytest.mark.parametrize(
    ("name", "other"), [("ann", "anne"), ("bob", "bob2"), ("J\u00f6rg", "Jorg"), ("\u7530\u4e2d", "\u7530\u53e3")]
)
def test_different_names_are_not_similar(name: str, other: str) -> None:
    assert not same_named({b"1": name, b"2": other})


@pytest.mark.thorough
def test_the_reason_of_a_failed_connection_is_shown(start_chat: Start, serving: Serve, tmp_path: Path) -> None:
    """Different keys, a key on one side only, an address without listener, and a connection without encryption."""
    with_key = serving(tmp_path / "with key", "--create", "--listen", HERE, "--cabal-key", KEY).address
    without = serving(tmp_path / "without", "--create", "--listen", HERE).address
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # no process listens there, and no other process gets the port
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
        for options, text in (
            (("--connect", nobody, "--cabal-key", KEY), f"not connected: no peer at {nobody}"),
            (
                ("--connect", with_key, "--cabal-key", OTHER_KEY),
                f"not connected: wrong cabal key? {with_key} closed the connection",
            ),
            (("--connect", with_key), f"not connected: cabal key missing here? {with_key} closed the connection"),
            (("--connect", without), "1 peer, in step, not encrypted"),
        ):
            client, sees = open_client(start_chat, "-s", "client", *options)
            sees.shows(text)
            assert client.end(CTRL_Q) == 0


@pytest.mark.thorough
def test_serve_reports_the_reason_to_its_clients(start_chat: Start, serving: Serve, tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
        server = serving(tmp_path / "store", "--create", "--listen", HERE, "--connect", nobody)
        server.address  # noqa: B018 - it is ready
        client, sees = open_client(start_chat, "-s", "store")
        sees.shows(f"not connected: no peer at {nobody}, not encrypted")
        assert client.end(CTRL_Q) == 0
        assert server.stop() == 0


def test_the_last_line_shows_the_keys_for_the_current_state(start_chat: Start, tmp_path: Path) -> None:
    client, sees = open_client(start_chat, "-s", "store")
    sees.shows("/nick NAME sets your name   F1 help")
    client.type("/nick ann")
    wait_until(lambda: "sets your name" not in sees.text, lambda: sees.text)
    client.type("hello")
    sees.shows("ann hello")
    client.press("\x1b")
    sees.shows("Escape back")
    client.press("\x1b")
    wait_until(lambda: "Escape back" not in sees.text, lambda: sees.text)
    assert client.end(CTRL_Q) == 0
