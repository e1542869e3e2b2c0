"""A value of a view that cannot be decoded raises an error that names the repair, and not an error of Python."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from inside import write_rows
from people import ANN, BOB, raws

from cablestore import CableStore, Info
from cablestore.errors import CorruptStoreError
from cablestore.index.latest import ORDER_KEY_SIZE_BYTES
from cablestore.views import acts, channel_topic, membership, user_info

Read = Callable[[CableStore], object]
Damage = Callable[[bytes], bytes]


def has_declined(store: CableStore) -> bool:
    with store.snapshot() as state:
        return acts.has_declined(state.reader, ANN.key)


NUMBER = b"\x05"
"""The number 5 in msgpack, where a list is expected."""


@pytest.mark.parametrize(
    ("prefix", "damage", "read", "what"),
    [
        (channel_topic.PREFIX, lambda value: value + b"\xff", lambda store: store.topic("c"), "the topic of 'c'"),
        (channel_topic.PREFIX, lambda value: value + b"\xff", lambda store: [*store.channels()], "the topic of 'c'"),
        (
            user_info.LATEST_PREFIX,
            lambda value: value[:ORDER_KEY_SIZE_BYTES] + NUMBER,
            lambda store: store.user(ANN.key),
            f"the info of {ANN.key.hex()}",
        ),
        (membership.PREFIX, lambda value: value[:-1], lambda store: [*store.members("d")], "the membership of "),
        (acts.CONSENT_PREFIX, lambda _: NUMBER, has_declined, "a row of a user's consent to roles"),
    ],
    ids=["topic", "topics", "info", "membership", "consent"],
)
def test_a_damaged_value_is_reported(prefix: bytes, damage: Damage, read: Read, what: str) -> None:
    with CableStore.in_memory() as store:
        store.ingest(raws(ANN.topic("c", "t"), ANN.post(Info.of(name="ann", accept_role=False)), BOB.join("d")))
        rows = {key: value for key, value in store.dump() if key.startswith(prefix)}
        assert rows
        write_rows(store, {key: damage(value) for key, value in rows.items()})
        with pytest.raises(CorruptStoreError, match=f"{what}.* is damaged. Run `cablestore rebuild`"):
            read(store)
