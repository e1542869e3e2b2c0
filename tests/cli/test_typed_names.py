"""Typed names: commands find users and channels independent of case and Unicode form, without guessing.

macOS types accents as separate characters. Stored names of other users have any form.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from people import BOB, CYD, raws
from serving import HERE, Served, cablestore
from waiting import wait_until

from cablestore import CableStore
from cablestore.chat.command_functions import channels_in
from cablestore.chat.entries import ChannelEntry
from cablestore.chat.first_screen import first_channel
from cablestore.cli.commands import load_all
from cablestore.cli.reindex import drops_of
from cablestore.errors import NotFoundError
from cablestore.files import folder_of

Run = Callable[..., tuple[int, str, str]]
CHANNEL, TYPED_CHANNEL = "Caf\u00e9 Z\u00fcrich", "#cafe\u0301  ZU\u0308RICH"
USER, TYPED_USER = "Jos\u00e9", "@jose\u0301"
DECOMPOSED = unicodedata.normalize("NFD", CHANNEL)

WITH_CHANNEL = [
    ("log", TYPED_CHANNEL),
    ("users", "--channel", TYPED_CHANNEL),
    ("search", "hello", "--channel", TYPED_CHANNEL),
    ("join", TYPED_CHANNEL),
    ("post", TYPED_CHANNEL, "hi"),
    ("topic", TYPED_CHANNEL, "coffee"),
    ("role", TYPED_USER, "mod", "--channel", TYPED_CHANNEL),
    ("hide", TYPED_USER, "--channel", TYPED_CHANNEL),
    ("unhide", TYPED_USER, "--channel", TYPED_CHANNEL),
    ("moderation", "--channel", TYPED_CHANNEL),
    ("leave", TYPED_CHANNEL),
    ("drop", "--channel", TYPED_CHANNEL),
    ("undrop", "--channel", TYPED_CHANNEL),
]
WITH_USER = [
    ("search", "hello", "--author", TYPED_USER),
    ("invite", "--new-key", "--admin", TYPED_USER),
    ("invite", "--new-key", "--mod", TYPED_USER),
    ("role", TYPED_USER, "admin"),
    ("role", TYPED_USER, "user"),
    ("hide", TYPED_USER),
    ("unhide", TYPED_USER),
    ("block", TYPED_USER),
    ("unblock", TYPED_USER),
    ("drop", TYPED_USER),
    ("undrop", BOB.key.hex().upper()),
]
ELSEWHERE = {"export", "import-irc", "serve", "sync", "reconcile", "chat", "reindex", "tables"}
"""Commands with a channel that have separate tests below."""


@pytest.fixture(params=[CHANNEL, DECOMPOSED], ids=["composed", "decomposed"])
def channel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path, channel: str) -> Path:
    with CableStore.open(tmp_path / "store") as store:
        store.set_name("ann")
        store.ingest(raws(BOB.named(USER), BOB.text(channel, "hello"), CYD.text("default", "hello")))
    return tmp_path / "store"


def parameters(commands: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each command with each of its parameters."""
    for name, command in commands.items():
        if isinstance(command, click.Group):
            yield from ((name, parameter) for _, parameter in parameters(dict(command.commands)))
        else:
            yield from ((name, str(param.name)) for param in command.params)


def test_every_command_with_a_channel_or_a_user_is_tested() -> None:
    named = {name for name, param in parameters(load_all()) if param in ("channel", "channels")}
    assert named == {words[0] for words in WITH_CHANNEL} | ELSEWHERE
    users = {
        name for name, param in parameters(load_all()) if param in ("user", "users", "targets", "author", "admins")
    }
    assert users == {words[0] for words in WITH_USER}


def test_commands_find_a_channel_by_a_typed_name(run: Run, path: Path, channel: str) -> None:
    for words in WITH_CHANNEL:
        status, out, err = run(*words, "-s", path)
        assert status == 0, (words, err)
        assert "no messages" not in out + err
        assert "nothing was written" not in out + err, words
        with CableStore.open(path) as store:
            names = [each.name for each in store.channels()]
            assert names == (["default"] if "drop" in words[0] else [channel, "default"]), words
        if words[0] == "post":
            assert " hi" in run("log", TYPED_CHANNEL, "-s", path)[1]


def test_commands_find_a_user_by_a_typed_name(run: Run, path: Path) -> None:
    for words in WITH_USER:
        status, out, err = run(*words, "-s", path)
        assert status == 0, (words, err)
        assert "nothing was written" not in out + err, words


def test_an_export_finds_a_channel_by_a_typed_name(
    run: Run, path: Path, tmp_path: Path, serving: Callable[..., Served]
) -> None:
    """The test exports in the process of the command, and beside `serve`."""
    status, out, err = run("export", tmp_path / "out", "--channel", TYPED_CHANNEL, "-s", path)
    assert (status, err) == (0, "")
    assert "exported 2 posts" in out
    serving(path, "--listen", HERE).address  # noqa: B018 - it is ready
    status, out, err = run("export", tmp_path / "again", "--channel", TYPED_CHANNEL, "-s", path)
    assert "exported 2 posts" in out


def test_an_import_of_logs_finds_a_channel_by_a_typed_name(run: Run, path: Path, tmp_path: Path, channel: str) -> None:
    log = tmp_path / "log.txt"
    log.write_text("2024-01-31 12:00:00 <dora> from a log\n2024-01-31 12:00:01 <dora> and more\n")
    status, _, err = run("import-irc", log, "--seed-phrase", "x", "--channel", TYPED_CHANNEL, "-s", path)
    assert status == 0, err
    with CableStore.open(path) as store:
        assert [each.name for each in store.channels()] == [channel, "default"]
        assert len(store.messages(channel).messages) == 3


@pytest.mark.thorough
def test_a_sync_requests_the_stored_name_of_a_typed_channel(
    path: Path, tmp_path: Path, serving: Callable[..., Served], channel: str
) -> None:
    """The request to the peer has the channel as stored, not as typed."""
    with CableStore.open(tmp_path / "other") as other:
        other.ingest(raws(CYD.text(channel, "news"), CYD.text("default", "not these")))
    server = serving(tmp_path / "other", "--listen", HERE)
    for command, *more in (["sync"], ["reconcile", "--cable"]):
        copy = shutil.copytree(path, tmp_path / command)
        done = cablestore(command, server.address, "--channels", TYPED_CHANNEL, *more, store=copy)
        assert done.returncode == 0, done.stderr
        with CableStore.open(copy) as store:
            assert {message.text for message in store.messages(channel).messages} >= {"hello", "news"}
            assert {message.text for message in store.messages("default").messages} == {"hello"}


@pytest.mark.thorough
def test_serve_finds_a_channel_by_a_typed_name(
    path: Path, tmp_path: Path, serving: Callable[..., Served], channel: str
) -> None:
    with CableStore.open(tmp_path / "other") as other:
        other.ingest(raws(CYD.text(channel, "news")))
    server = serving(tmp_path / "other", "--listen", HERE)
    serving(path, "--connect", server.address, "--channels", TYPED_CHANNEL, "--listen", HERE).address  # noqa: B018 - ready
    wait_until(lambda: "news" in cablestore("log", channel, store=path).stdout)


def test_a_reindexing_excludes_a_channel_by_a_typed_name(path: Path, tmp_path: Path, channel: str) -> None:
    with CableStore.open(path) as store:
        store.export(tmp_path / "out")
    chosen = {"store": path, "channels": (TYPED_CHANNEL,), "authors": (), "before_ms": None}
    assert drops_of((folder_of(str(tmp_path / "out")),), [], chosen).channels == {channel}
    typed = {**chosen, "store": None, "channels": ("#" + DECOMPOSED,)}
    assert drops_of((folder_of(str(tmp_path / "out")),), [], typed).channels == {CHANNEL}


def test_the_client_finds_a_channel_by_a_typed_name(channel: str) -> None:
    known = ["default", channel, "A, b"]
    assert first_channel(TYPED_CHANNEL, [ChannelEntry(name) for name in known]) == channel
    assert channels_in(TYPED_CHANNEL, known) == [channel]
    assert channels_in(f"{TYPED_CHANNEL}, #DEFAULT", known) == [channel, "default"]
    assert channels_in("#a, B", known) == ["A, b"]
    assert channels_in("A,c", known) == ["A", "c"]


@pytest.mark.parametrize(
    ("typed", "others"),
    [("garden", ["GARDEN", "Garden"]), (CHANNEL, [CHANNEL.upper(), unicodedata.normalize("NFD", CHANNEL.lower())])],
    ids=ascii,
)
def test_an_ambiguous_channel_is_rejected(run: Run, tmp_path: Path, typed: str, others: list[str]) -> None:
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.ingest(raws(*(BOB.text(name, "hello") for name in others)))
        before = store.dump_digest()
    commands = [[typed if word == TYPED_CHANNEL else word for word in words] for words in WITH_CHANNEL]
    users = [[BOB.key.hex() if word == TYPED_USER else word for word in words] for words in commands]
    for words in [*users, ["export", str(tmp_path / "out"), "--channel", typed]]:
        status, out, err = run(*words, "-s", path)
        assert (status, out) == (2, ""), words
        assert "is ambiguous" in err
        assert all(name in err for name in others)
    with CableStore.open(path) as store:
        assert store.dump_digest() == before
    with pytest.raises(NotFoundError, match="is ambiguous"):
        first_channel(typed, [ChannelEntry(name) for name in others])


def test_digits_that_match_a_name_and_a_key_are_rejected(run: Run, tmp_path: Path) -> None:
    """A user without a name is shown by the first digits of its key.

    Commands do not act on a user with these digits as a name.
    """
    path, digits = tmp_path / "store", BOB.key.hex()[:8]
    with CableStore.open(path) as store:
        store.set_name("ann")
        store.ingest(raws(BOB.text("default", "BUY NOW"), CYD.named(digits), CYD.text("default", "hi")))
        before = store.dump_digest()
    for words in WITH_USER:
        command = [digits if word in (TYPED_USER, BOB.key.hex().upper()) else word for word in words]
        status, out, err = run(*command, "-s", path)
        assert (status, out) == (2, ""), command
        assert err.count("\n") == 1 or "Usage" in err
        assert BOB.key.hex() in err
        assert f"{digits!r} {CYD.key.hex()}" in err
    with CableStore.open(path) as store:
        assert store.dump_digest() == before
    assert run("block", BOB.key.hex()[:12], "-s", path)[0] == 0
