"""Moderation: its cost for opening a store, a page, an action, and answers with many drops: `moderation.py [ACTS]`."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from common import START_MS, authors, median, print_result, sentence, signed, size, size_given

from cablestore import Block, CableStore, Moderation, Role, StoreOptions, Text, Unblock
from cablestore.limits import MAX_RECIPIENTS
from cablestore.moderation import Action, UserRole
from cablestore.protocol.body import LOCAL_ONLY, PUBLIC
from cablestore.store import answers

ADMINS, MODS, USERS = 3, 20, 2_000
PAGE = 50
CHANNEL = "bench"
PRIVATE = size(1_000, tiny=20)
DROPPED = size(10_000, tiny=40)


def texts() -> list[bytes]:
    """Return messages. Those of every tenth author will be hidden."""
    rng, who = random.Random(1), authors(USERS)
    return [
        signed(Text(CHANNEL, sentence(rng, 90)), who[1000 + i % 10], START_MS + i)[0]
        for i in range(size(2_000, tiny=100))
    ]


def acts(number: int) -> Iterator[bytes]:
    """Return actions of three admins and twenty mods: seven in ten on users and posts, two blocks, one role."""
    rng, who = random.Random(2), authors(USERS)
    for i in range(number):
        by, at_ms = who[rng.randrange(MODS)], START_MS + 10_000 + i
        user = who[rng.randrange(MODS, 1000)].public_key
        kind = rng.randrange(10)
        if kind == 0:
            body: Role | Moderation | Block | Unblock = Role(
                "", PUBLIC, "", user, rng.choice((UserRole.MOD, UserRole.USER)).in_post
            )
            by = who[rng.randrange(ADMINS)]
        elif kind < 3:
            body = Block("spam", PUBLIC, (user,), i % 2, 0) if rng.random() < 0.7 else Unblock("", PUBLIC, (user,), 0)
        elif kind < 7:
            body = Moderation("off topic", PUBLIC, rng.choice(("", CHANNEL)), (user,), rng.randrange(2))
        else:
            body = Moderation("", PUBLIC, CHANNEL, (rng.randbytes(32),), rng.randrange(2, 6))
        yield signed(body, by, at_ms)[0]


def prepare(folder: Path, number: int) -> None:
    """Write the store: messages, roles, actions, private actions, and the action that hides every tenth author."""
    who = authors(USERS)
    with CableStore.open(folder, options=StoreOptions(clock=lambda: START_MS)) as store:
        store.ingest(texts())
        for rank, few in ((UserRole.ADMIN, who[:ADMINS]), (UserRole.MOD, who[ADMINS:MODS])):
            for each in few:
                store.write(Role("", PUBLIC, "", each.public_key, rank.in_post), sync=False)
        store.write(Moderation("", PUBLIC, "", (who[1000].public_key,), Action.HIDE_USER))
        for each in who[1100 : 1100 + PRIVATE]:
            store.write(Moderation("", LOCAL_ONLY, "", (each.public_key,), Action.HIDE_USER), sync=False)
        for _ in store.parts.writer.ingest(acts(number), sync=False, batch_posts=500, verify=False):
            pass


def bench_drops(folder: Path) -> None:
    """Measure an answer, a list of channels and a message of the user with few and with many dropped users."""
    rng = random.Random(3)
    with CableStore.open(folder, options=StoreOptions(clock=lambda: START_MS + 1_000_000)) as store:
        store.ingest(texts())

        def drop(users: int) -> None:
            for _ in range(0, users, MAX_RECIPIENTS):
                store.moderation.drop(users=[rng.randbytes(32) for _ in range(MAX_RECIPIENTS)], sync=False)
            store.moderation.sweep()

        def answer() -> None:
            with store.snapshot() as snapshot:
                assert len(list(answers.channel_time_range(snapshot.reader, CHANNEL, 0, 0, PAGE))) == PAGE

        work: dict[str, Callable[[], object]] = {
            f"a time range of {PAGE}": answer,
            "the list of channels": lambda: list(store.channels()),
            "a message written": lambda: store.post("own", "hello", sync=False),
        }
        drop(MAX_RECIPIENTS)
        store.post("own", "hello")
        before_s = {name: median(each, 50) for name, each in work.items()}
        drop(DROPPED)
        for name, each in work.items():
            share = median(each, 50) / before_s[name]
            print_result(
                f"{name}, {DROPPED:,} more users dropped", f"{share:.2f} times", "at most 1.5 times", share <= 1.5
            )


def main() -> None:
    """Build a store and measure."""
    number = size_given(100_000, tiny=500)
    print(f"# moderation: {number:,} public and {PRIVATE:,} private acts")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, number)
        CableStore.open(folder).close()  # dropped posts are found and removed

        plain_s = median(lambda: CableStore.open(folder, options=StoreOptions(moderated=False)).close(), 5)
        more_s = median(lambda: CableStore.open(folder).close(), 5) - plain_s
        print_result("opening, more than without moderation", f"{more_s:.3f} s", "at most 0.5 s", more_s <= 0.5)
        with CableStore.open(folder, options=StoreOptions(moderated=False)) as store:
            assert len(store.messages(CHANNEL, limit=PAGE).messages) == PAGE
            plain_ms = 1000 * median(lambda: store.messages(CHANNEL, limit=PAGE), 50)
        with CableStore.open(folder) as store:
            page = store.messages(CHANNEL, limit=PAGE).messages
            assert len(page) == PAGE
            assert not any(message.is_hidden for message in page)
            page_ms = 1000 * median(lambda: store.messages(CHANNEL, limit=PAGE), 50)
            share = page_ms / plain_ms
            print_result(f"a page of {PAGE}", f"{plain_ms:.2f} ms", "")
            print_result(
                f"a page of {PAGE}, one in ten hidden", f"{share:.2f} times", "at most 1.3 times", share <= 1.3
            )
            users = iter([each.public_key for each in authors(USERS)[1200:1300]])

            def hide_one_more() -> None:
                user = next(users)
                store.moderation.hide(users=[user], sync=False)
                assert store.user(user).is_hidden

            print_result("an act, written and counting", f"{1000 * median(hide_one_more, 5):.1f} ms", "")
    with tempfile.TemporaryDirectory() as name:
        bench_drops(Path(name))


if __name__ == "__main__":
    main()
