"""Commands after a wrong clock, and commands without effect: they print the facts and do not write more."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from people import BOB, CYD, raws
from serving import HERE, Served

from cablestore import CableStore, StoreOptions

Run = Callable[..., tuple[int, str, str]]
DAY_MS = 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(params=["closed", "served"])
def mode(request: pytest.FixtureRequest) -> str:
    """Return the writer: the command, or the process that has the store open."""
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def serve(mode: str, folder: Path, serving: Callable[..., Served]) -> Callable[[], None]:
    """Return a function that starts to serve the store, if another process must have it open."""

    def start() -> None:
        assert mode == "closed" or serving(folder, "--listen", HERE).address

    return start


@pytest.fixture
def run(run: Run, folder: Path) -> Run:
    """Return a function that runs a command on the store of the folder, in this process."""
    return lambda *words: run(*words, "-s", str(folder))


def write_ahead(folder: Path, ahead_ms: int) -> None:
    """Write the posts of a user whose clock is ahead."""
    with CableStore.open(folder, options=StoreOptions(clock=lambda: now_ms() + ahead_ms)) as store:
        store.ingest(raws(BOB.text("garden", "hello", at=now_ms() - DAY_MS)))
        store.set_name("old")
        store.set_topic("garden", "old topic")
        store.moderation.hide(users=[BOB.key], private=True)


REPLACED = (
    (("name", "new"), ("identity",), "new"),
    (("topic", "garden", "new topic"), ("channels",), "new topic"),
    (("unhide", BOB.key.hex(), "--private"), ("log", "garden"), "hello"),
)
"""Replacements of posts dated ahead, with the command that shows each and its output."""


@pytest.mark.thorough
def test_commands_take_effect_after_the_clock_was_two_days_ahead(
    serve: Callable[[], None], folder: Path, run: Run
) -> None:
    write_ahead(folder, 2 * DAY_MS)
    serve()
    for words, seen, shows in REPLACED:
        status, _, errors = run(*words)
        assert (status, "is dated" in errors) == (0, True)
        assert shows in run(*seen)[1]
    assert run("leave", "garden")[0] == 0
    status, _, errors = run("post", "garden", "I am back")
    assert (status, "joined garden" in errors) == (0, True)
    status, _, errors = run("post", "garden", "and stay")
    assert (status, errors) == (0, "")  # dated now, and joined once


@pytest.mark.thorough
def test_commands_fail_after_the_clock_was_years_ahead_until_the_post_is_deleted(
    serve: Callable[[], None], folder: Path, run: Run
) -> None:
    write_ahead(folder, 3650 * DAY_MS)
    serve()
    for words, seen, shows in REPLACED:
        status, said, errors = run(*words)
        assert (status, said, errors.count("\n")) == (2, "", 1)
        assert "Nothing was written" in errors
        assert shows not in run(*seen)[1]
        [command] = re.findall("`cablestore ([^`]*)`", errors)
        assert run(*command.split())[0] == 0
        assert run(*words)[0] == 0
        assert shows in run(*seen)[1]


def test_commands_without_effect_do_not_write(run: Run, folder: Path) -> None:
    """Each command runs twice: the second time it prints that nothing was written."""
    text = BOB.text("garden", "hello")
    with CableStore.open(folder) as store:
        store.ingest(raws(text, BOB.text("shed", "hello")))
    bob = BOB.key.hex()
    for words in (
        ("hide", bob),
        ("unhide", bob),
        ("hide", bob, "--channel", "garden", "--reason", "noise"),
        ("unhide", bob, "--channel", "garden"),
        ("hide", text.hash.hex(), "--private"),
        ("unhide", text.hash.hex(), "--private"),
        ("role", bob, "mod"),
        ("role", bob, "user"),
        ("block", bob, "--notify"),
        ("unblock", bob),
        ("drop", "--channel", "shed"),
        ("undrop", "--channel", "shed"),
        ("block", bob, "--drop", "--private"),
        ("unblock", bob, "--undrop", "--private"),
        ("join", "garden"),
        ("topic", "garden", "roses"),
        ("topic", "garden", ""),
        ("name", "ann"),
    ):
        code, _, notes = run(*words)
        assert (code, "nothing" in notes) == (0, False), (words, notes)
        before = run("dump", "--digest")
        code, _, notes = run(*words)
        assert code == 0
        assert words[0] == "name" or "nothing was written" in notes, words
        assert run("dump", "--digest") == before, words


def test_actions_with_an_effect_are_written(run: Run, folder: Path) -> None:
    """Among several targets, only changed ones are acted on. Another reason or privacy is a change."""
    with CableStore.open(folder) as store:
        store.ingest(raws(BOB.text("garden", "hello"), BOB.text("shed", "hello")))
    bob, other = BOB.key.hex(), "ab" * 32
    for words, writes in (
        (("hide", bob), True),
        (("hide", bob, other), True),
        (("hide", bob, other), False),
        (("hide", bob, "--reason", "noise"), True),
        (("hide", bob, "--private"), True),
        (("hide", bob, "--channel", "garden"), True),
        (("unhide", bob, "--private"), True),
        (("unhide", bob, "--channel", "shed"), True),
        (("hide", bob), True),
        (("block", bob), True),
        (("block", bob, "--drop"), True),
        (("block", bob, "--drop"), False),
        (("unblock", bob), True),
        (("unblock", bob), False),
        (("unblock", bob, "--undrop"), True),
        (("unblock", bob, "--undrop"), False),
    ):
        code, out, notes = run(*words, "--json")
        assert code == 0, notes
        assert ('"posts": []' not in out) is writes, (words, out)


def test_a_command_warns_of_a_clock_that_is_behind(run: Run, folder: Path) -> None:
    """The command writes nevertheless. A single user with a wrong clock does not cause a warning."""
    later = [who.text("garden", "hello", at=now_ms() + DAY_MS // 4) for who in (BOB, CYD)]
    with CableStore.open(folder) as store:
        store.ingest(raws(later[0]))
    assert "clock" not in run("post", "garden", "hello")[2]
    with CableStore.open(folder) as store:
        store.ingest(raws(later[1]))
    for words in (("post", "garden", "hello"), ("name", "ann"), ("hide", BOB.key.hex())):
        code, _, notes = run(*words)
        assert (code, "about 6 hours behind the messages of 2 other users" in notes) == (0, True)
    assert "clock" not in run("log", "garden")[2]


def test_a_deletion_is_not_written_twice(run: Run, folder: Path) -> None:
    with CableStore.open(folder) as store:
        post = store.post("garden", "hello")
    assert run("delete", post.hash.hex())[0] == 0
    before = run("dump", "--digest")
    code, out, notes = run("delete", post.hash.hex())
    assert (code, out, "nothing was written" in notes) == (0, "", True)
    assert run("dump", "--digest") == before


def test_an_unblock_that_is_dated_ahead_reports_which_posts_stay_dropped(run: Run, folder: Path) -> None:
    """Posts that are written until the date of the unblock stay dropped."""
    with CableStore.open(folder, options=StoreOptions(clock=lambda: now_ms() + DAY_MS)) as store:
        store.ingest(raws(BOB.text("garden", "hello", at=now_ms())))
        store.moderation.block([BOB.key], drop=True)
    code, _, notes = run("unblock", BOB.key.hex())
    assert (code, "are still dropped" in notes) == (0, True)
    code, _, notes = run("unblock", BOB.key.hex(), "--undrop")
    assert (code, "are still dropped" in notes) == (0, False)
    with CableStore.open(folder) as store:
        store.ingest(raws(BOB.text("garden", "back", at=now_ms())))
        assert [message.text for message in store.messages("garden").messages] == ["back"]


@pytest.mark.parametrize(("command", "undo", "state"), [("block", "unblock", "blocked"), ("hide", "unhide", "hidden")])
def test_a_private_undo_reports_that_the_public_action_remains(
    run: Run, folder: Path, command: str, undo: str, state: str
) -> None:
    with CableStore.open(folder) as store:
        store.ingest(raws(BOB.named("bob"), BOB.text("garden", "hello")))
    assert run(command, "bob", "-s", folder)[0] == 0
    _, out, err = run(undo, "--private", "bob", "-s", folder)
    assert f"is no longer {state}" in out
    assert f"is still {state} for others because of your public action. Use `{undo}` without" in " ".join(err.split())
    _, _, err = run(undo, "bob", "-s", folder)
    assert "stays" not in err
