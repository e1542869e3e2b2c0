"""Turns of those who write to a store: each does one thing by chance."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from people import ANN, BOB, CYD, Person, raws

from cablestore import CableStore, Post
from cablestore.errors import InvalidPostError
from cablestore.moderation import UserRole

CHANNELS = ("default", "aside", "third")

Turn = Callable[[CableStore, random.Random], None]


def leave_if_in(store: CableStore, channel: str) -> None:
    with suppress(InvalidPostError):  # who is not in a channel cannot leave it
        store.leave(channel, sync=False)


def ann_writes(store: CableStore, chance: random.Random) -> None:
    channel = chance.choice(CHANNELS)
    match chance.randrange(8):
        case 0:
            store.set_topic(channel, str(chance.random()), sync=False)
        case 1:
            store.set_info(name=f"ann {chance.random()}", sync=False)
        case 2:
            leave_if_in(store, channel)
        case 3:
            store.join(channel, sync=False)
        case 4:
            posts = [post for post in store.posts_by(ANN.key) if post.type_name in ("text", "topic", "join", "info")]
            if posts:
                store.delete(chance.choice(posts).hash, force=True, sync=False)  # another turn may have discarded it
        case 5:
            store.local.set_draft(channel, str(chance.random()))
        case _:
            store.post(channel, str(chance.random()), sync=False)


def others_write(store: CableStore, chance: random.Random) -> None:
    who: Person = chance.choice((BOB, CYD))
    posts: list[Post] = []
    for _ in range(3):
        channel = chance.choice(CHANNELS)
        match chance.randrange(6):
            case 0:
                posts.append(who.topic(channel, str(chance.random())))
            case 1:
                posts.append(who.named(str(chance.random())))
            case 2:
                posts.append(chance.choice((who.join, who.leave))(channel))
            case 3:
                own = [post for post in store.posts_by(who.key) if post.type_name != "delete"]
                posts += [who.delete(chance.choice(own))] if own else []
            case _:
                posts.append(who.text(channel, str(chance.random())))
    chance.shuffle(posts)
    store.ingest(raws(*posts))


def ann_moderates(store: CableStore, chance: random.Random) -> None:
    user, channel = chance.choice((BOB, CYD)).key, chance.choice((None, *CHANNELS))
    acts, name = store.moderation, chance.choice(CHANNELS)
    texts = [message.hash for message in store.messages(name, hidden="show").messages]
    match chance.randrange(10):
        case 0:
            acts.hide(users=[user], channel=channel, sync=False)
        case 1:
            acts.unhide(users=[user], channel=channel, sync=False)
        case 2:
            acts.hide(posts=texts[:2], sync=False)
        case 3:
            acts.unhide(posts=texts[:4], sync=False)
        case 4:
            acts.set_role(user, chance.choice(list(UserRole)), channel=channel, sync=False)
        case 5:
            acts.drop(posts=texts[:1], sync=False)
        case 6:
            chance.choice((acts.drop, acts.undrop))(channel="third", sync=False)
        case 7:
            acts.block([user], drop=chance.random() < 0.5, private=True, sync=False)
        case _:
            acts.unblock([user], undrop=True, private=True, sync=False)


def some_is_lost(store: CableStore, chance: random.Random) -> None:
    texts = [message.hash for message in store.messages("default", hidden="show").messages]
    match chance.randrange(4):
        case 0:
            store.discard(texts[:2])
        case 1:
            store.prune(keep_newest=8)
        case 2:
            store.local.mute(chance.choice(CHANNELS))
        case _:
            states = [post.hash for who in (ANN, BOB) for post in store.posts_by(who.key) if post.type_name != "text"]
            store.discard(states[:1])


def ann_hides_messages(store: CableStore, chance: random.Random) -> None:
    texts = [message.hash for message in store.messages(chance.choice(CHANNELS), hidden="show").messages]
    if texts:
        chance.choice((store.moderation.hide, store.moderation.unhide))(posts=texts[:3], sync=False)
