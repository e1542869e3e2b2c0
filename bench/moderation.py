"""Moderation: what it adds to opening a store, to a page of messages and to a new act: `moderation.py [ACTS]`."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import START_MS, authors, median, seconds, sentence, signed, size, size_given, tell

from cablestore import Block, CableStore, Moderation, Role, Text, Unblock
from cablestore.moderation import Action, Decisions, StoredActs, UserRole, act_of
from cablestore.protocol.body import LOCAL_ONLY, PUBLIC

ADMINS, MODS, USERS = 3, 20, 2_000
PAGE = 50
CHANNEL = "bench"
PRIVATE = size(1_000, tiny=20)


def texts() -> list[bytes]:
    """Return messages of which those of every tenth author will be hidden."""
    rng, who = random.Random(1), authors(USERS)
    return [
        signed(Text(CHANNEL, sentence(rng, 90)), who[1000 + i % 10], START_MS + i)[0]
        for i in range(size(2_000, tiny=100))
    ]


def acts(number: int) -> Iterator[bytes]:
    """Return acts of three admins and twenty mods: seven in ten on users and posts, two blocks, one role."""
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
    """Write the store: messages, roles, acts, private acts, and the act that hides every tenth author."""
    who = authors(USERS)
    with CableStore.open(folder, clock=lambda: START_MS) as store:
        store.ingest(texts())
        for rank, few in ((UserRole.ADMIN, who[:ADMINS]), (UserRole.MOD, who[ADMINS:MODS])):
            for each in few:
                store.write(Role("", PUBLIC, "", each.public_key, rank.in_post), sync=False)
        store.write(Moderation("", PUBLIC, "", (who[1000].public_key,), Action.HIDE_USER))
        for each in who[1100 : 1100 + PRIVATE]:
            store.write(Moderation("", LOCAL_ONLY, "", (each.public_key,), Action.HIDE_USER), sync=False)
        for _ in store.ingest_batches(acts(number), batch_posts=500, verify=False):
            pass


def main() -> None:
    """Build and measure."""
    number = size_given(100_000, tiny=500)
    print(f"# moderation: {number:,} public and {PRIVATE:,} private acts")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, number)
        with CableStore.open(folder) as store:
            own = store.identity.public_key

            def read() -> Decisions:
                with store.snapshot() as snapshot:
                    decisions = Decisions.read(StoredActs(snapshot.reader, own), own)
                decisions.role(own, CHANNEL)  # makes the roles of the context
                return decisions

            first_s = seconds(read)
            again_s = median(read, 5)
            tell("decisions, read when the store opens", f"{first_s:.3f} s", "at most 0.5 s", first_s <= 0.5)
            tell("decisions, read again", f"{again_s:.3f} s", "")
            decisions = read()
            page = store.messages(CHANNEL, limit=PAGE).messages

            def is_hidden() -> list[bool]:
                return [decisions.text_hidden_by(m.hash, m.author, CHANNEL, m.timestamp_ms) is not None for m in page]

            assert sum(is_hidden()) == PAGE // 10
            page_ms = 1000 * median(lambda: store.messages(CHANNEL, limit=PAGE), 50)
            decided_ms = 1000 * median(is_hidden, 50)
            share = (page_ms + decided_ms) / page_ms
            tell(f"a page of {PAGE}", f"{page_ms:.2f} ms", "")
            tell(f"a page of {PAGE}, and what of it is hidden", f"{share:.2f} times", "at most 1.3 times", share <= 1.3)

            def hide_one_more() -> None:
                post = store.write(Moderation("", PUBLIC, "", (authors(USERS)[1001].public_key,), 0), sync=False)
                act = act_of(post)
                assert act is not None
                with store.snapshot() as snapshot:
                    after = decisions.changed(StoredActs(snapshot.reader, own), added=[act])
                assert after.user_hidden_by(act.targets[0], CHANNEL) is not None

            who = authors(USERS)[1001].public_key
            assert decisions.user_hidden_by(who, CHANNEL) is None
            tell("an act, written and counting", f"{1000 * median(hide_one_more, 5):.1f} ms", "")


if __name__ == "__main__":
    main()
