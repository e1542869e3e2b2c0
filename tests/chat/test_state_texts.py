"""Texts about the state of a cabal: connections, the invitation, the first screen, and lists of channels and members."""

from __future__ import annotations

import pytest
from chatting import cabals_on, new_store
from people import ANN, BOB, raws

from cablestore import limits
from cablestore.chat.changes import CabalChanges
from cablestore.chat.connection_text import connection_text
from cablestore.chat.entries import ChannelEntry, Member
from cablestore.chat.first_screen import first_channel, note_of
from cablestore.chat.inviting import invitation_text
from cablestore.chat.key_names import shown_key
from cablestore.chat.keys import Keys
from cablestore.chat.line_list import Line
from cablestore.chat.lines import CabalChannel, FoldLine, Folds, channel_line, channel_lines, heading, member_line
from cablestore.chat.mention_reading import latest_mentions
from cablestore.errors import ArgumentError
from cablestore.moderation import Seed, UserRole
from cablestore.remote.node import NodeState, PeerFailure, PeerState
from cablestore.store.changes import ChannelAdded, MessageAdded, MessageDeleted

KEY = bytes(range(32))
PEER = "192.0.2.7:13333"


def node(*peers: PeerState, **more: object) -> NodeState:
    return NodeState(KEY, peers=peers, **more)  # type: ignore[arg-type] # chosen by the test


def peer(*, is_in_step: bool | None = True, no_answer_s: int = 0) -> PeerState:
    return PeerState(PEER, is_in_step, no_answer_s)


def failed(*reasons: str) -> NodeState:
    return node(connect=(PEER,), failures=tuple(PeerFailure(PEER, reason) for reason in reasons))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (None, "offline"),
        (node(), "no peers yet"),
        (node(connect=(PEER,)), "connecting"),
        (NodeState(None), "no peers yet, not encrypted"),
        (node(peer()), "1 peer, in step"),
        (node(peer(), peer()), "2 peers, in step"),
        (node(peer(), peer(is_in_step=False)), "2 peers"),
        (node(peer(is_in_step=None)), "1 peer"),
        (node(peer(), peer(no_answer_s=1)), "2 peers, 1 not answering"),
        (node(peer(), failures=(PeerFailure("x", "refused"),)), "1 peer, in step"),
        (failed("[Errno 111] Connect call failed"), f"not connected: no peer at {PEER}"),
        (failed("refused", "refused"), f"not connected: no peer at {PEER}, and 1 more"),
        (failed("it does not answer"), f"not connected: no answer from {PEER}"),
        (failed("handshake message invalid"), f"not connected: wrong cabal key at {PEER}"),
        (failed("it may have another cabal key"), f"not connected: wrong cabal key? {PEER} closed the connection"),
        (
            failed("it has a cabal key, this node has none"),
            f"not connected: cabal key missing here? {PEER} closed the connection",
        ),
        (failed(f"cannot connect to {PEER}: host unreachable"), f"not connected: {PEER}: host unreachable"),
    ],
)
def test_connections_are_described(state: NodeState | None, text: str) -> None:
    assert connection_text(state) == text


def test_an_invitation_has_the_key_the_addresses_and_the_seed() -> None:
    seed = Seed(((ANN.key, UserRole.ADMIN),), 0)
    state = node(connect=(PEER,), listening=("0.0.0.0:1", "[::]:2", "garden.example:3", PEER))
    plain = f"cable:{KEY.hex()}?peer=garden.example:3&peer={PEER}"
    assert invitation_text(state, None) == plain
    assert invitation_text(state, seed).startswith(plain + "&")
    assert invitation_text(state, Seed(seed.roles, 0, revoked_at_ms=5)) == plain
    with pytest.raises(ArgumentError, match="This client is offline"):
        invitation_text(None, seed)


# --- lists ------------------------------------------------------------------------------------------

JOINED = ChannelEntry("apples", "what grows", 3, is_joined=True)
OTHERS = [ChannelEntry("bees"), ChannelEntry("cats", mentions=2), ChannelEntry("dogs", mentions=1, is_muted=True)]


def listed(*entries: ChannelEntry, place: str = "apples", unfolded: tuple[int, ...] = ()) -> list[str]:
    folds = Folds(CabalChannel(0, place), unfolded)
    return [line.text for line in channel_lines([entries], folds, ["cabal"])]


def test_channels_that_are_not_joined_are_folded() -> None:
    assert listed(JOINED, *OTHERS) == ["#apples", "▸ 3 other channels", "#cats"]
    assert listed(JOINED, *OTHERS, unfolded=(0,)) == ["#apples", "▾ 3 other channels", "#bees", "#cats", "#dogs"]
    assert listed(JOINED, *OTHERS, unfolded=(1,)) == ["#apples", "▸ 3 other channels", "#cats"]
    assert listed(JOINED, *OTHERS, place="bees") == ["#apples", "▸ 3 other channels", "#bees", "#cats"]
    assert listed(JOINED, OTHERS[1]) == ["#apples", "#cats"]
    assert listed(JOINED, OTHERS[1], unfolded=(0,)) == ["#apples", "▾ 1 other channel", "#cats"]
    assert listed(*OTHERS) == ["#bees", "#cats", "#dogs"]
    assert listed(JOINED) == ["#apples"]


def test_several_cabals_have_titles_and_their_own_folds() -> None:
    folds = Folds(CabalChannel(1, "apples"), (1,))
    lines = list(channel_lines([[JOINED, OTHERS[0]], [JOINED, OTHERS[0]]], folds, ["one", "two"]))
    assert [line.text for line in lines] == [
        "one", "#apples", "▸ 1 other channel", "two", "#apples", "▾ 1 other channel", "#bees"
    ]  # fmt: skip
    assert [line.key for line in lines][:3] == [None, CabalChannel(0, "apples"), FoldLine(0)]
    assert lines[6].key == CabalChannel(1, "bees")


def test_keys_step_through_the_visible_channels() -> None:
    joined = [JOINED, ChannelEntry("bees", is_joined=True, unread=1), ChannelEntry("cats", is_joined=True)]
    both = [joined, [ChannelEntry("kitchen", is_joined=True, unread=2)]]

    def steps(place: CabalChannel, by: int) -> CabalChannel | None:
        return Folds(place, ()).next(both, by)

    assert steps(CabalChannel(0, "apples"), 1) == (0, "bees")
    assert steps(CabalChannel(0, "apples"), -1) == (1, "kitchen")
    assert steps(CabalChannel(1, "kitchen"), 1) == (0, "apples")
    assert steps(CabalChannel(0, "unknown"), 1) == (0, "apples")
    assert Folds(CabalChannel(0, "x"), ()).next([[]], 1) is None

    def unread(place: CabalChannel) -> CabalChannel | None:
        return Folds(place, ()).next_unread(both)

    assert unread(CabalChannel(0, "apples")) == (0, "bees")
    assert unread(CabalChannel(0, "bees")) == (1, "kitchen")
    assert unread(CabalChannel(0, "cats")) == (1, "kitchen")
    assert unread(CabalChannel(1, "kitchen")) == (0, "bees")
    assert unread(CabalChannel(0, "unknown")) == (0, "bees")
    assert Folds(CabalChannel(0, "bees"), ()).next_unread([joined]) is None


def test_lines_of_channels_and_members_show_their_state() -> None:
    most = limits.MAX_UNREAD_COUNTED

    def of(**more: object) -> Line:
        return channel_line(0, ChannelEntry("a", **more))._replace(key=None)  # type: ignore[arg-type] # as above

    assert of(is_joined=True) == (None, "#a", "", "plain")
    assert of(is_joined=True, unread=most - 1) == (None, "#a", str(most - 1), "strong")
    assert of(is_joined=True, unread=most) == (None, "#a", f"{most - 1}+", "strong")
    assert of(is_joined=True, unread=3, mentions=1) == (None, "#a", "@1", "call")
    assert of(is_muted=True, is_joined=True, unread=3, mentions=1) == (None, "#a", "", "quiet")
    assert of(unread=3) == (None, "#a", "", "quiet")
    assert of(mentions=1) == (None, "#a", "@1", "call")
    assert [part for part, _ in heading(ChannelEntry("a", "why", is_muted=True))] == ["#a", "  ", "muted  why"]

    def member(role: UserRole = UserRole.USER, **more: bool) -> Line:
        return member_line(Member(BOB.key, "bob", role, **({"is_hidden": False, "is_self": False} | more)))

    assert member() == ("bob", " bob", "", "plain")
    assert member(UserRole.MOD) == ("bob", "@bob", "mod", "plain")
    assert member(UserRole.ADMIN, is_self=True) == ("bob", "@bob", "admin", "strong")
    assert member(is_self=True) == ("bob", " bob", "you", "strong")
    assert member(is_hidden=True) == ("bob", " bob", "hidden", "quiet")
    assert member(is_hidden=True, is_blocked=True) == ("bob", " bob", "blocked", "quiet")
    digits = BOB.key.hex()[:8]
    assert member(is_same_named=True) == (digits, f" bob {digits}", "", "plain")


# --- first screen -----------------------------------------------------------------------------------


def test_the_first_channel_is_the_typed_the_default_or_a_joined_one() -> None:
    default = ChannelEntry("default")
    assert first_channel("", []) == "default"
    assert first_channel("", [OTHERS[0], OTHERS[1]]) == "bees"
    assert first_channel("", [OTHERS[0], default]) == "default"
    assert first_channel("", [default, JOINED]) == "apples"
    assert first_channel("", [JOINED, ChannelEntry("default", is_joined=True)]) == "default"
    assert first_channel("APPLES", [default, JOINED]) == "apples"


def test_the_note_of_an_empty_channel_instructs_newcomers() -> None:
    keys = Keys({"help": ("f9", "f8")})
    assert shown_key(keys.of["help"][0]) == keys.shown("{help}") == "F9"
    with cabals_on(new_store()) as [cabal]:
        digits = cabal.own_key.hex()[:8]
        note = note_of(cabal, "ann", "default", [], keys)
        assert note[:3] == [
            "No messages yet: write the first one, and press Enter",
            "",
            f"You are ann, key {digits}. /nick NAME changes your name",
        ]
        assert note[4].startswith("You are offline. ")
        assert note[-1] == "F9 shows all keys and commands"
        assert note_of(cabal, "ann", "apples", [JOINED], keys) == note_of(cabal, "ann", "apples", [], keys)
        assert note_of(cabal, "ann", "default", [JOINED], keys) == ["No messages yet: write the first one"]
        unnamed = note_of(cabal, "", "default", [JOINED], keys)
        assert unnamed[2:4] == [f"You are {digits}, the first digits of your key", "/nick NAME sets your name"]


# --- mentions and changes ---------------------------------------------------------------------------


def test_mentions_are_listed_newest_first_with_their_state() -> None:
    with new_store() as store:
        store.set_name("ann")
        now_ms = next(store.posts_by(store.identity.public_key)).timestamp_ms
        old = BOB.text("a", "ann: old", at=now_ms + 1)
        answer = BOB.text("b", "ann: answer", at=now_ms + 2, links=(old.hash,))
        slow = BOB.text("c", "ann: from a slow clock", at=now_ms + 3, links=(old.hash, answer.hash))
        later = BOB.text("a", "ahead", at=now_ms + 9)
        ahead = BOB.text("a", "ann: linked to a later one", at=now_ms + 4, links=(later.hash,))
        store.ingest(raws(BOB.named("bob"), old, answer, slow, later, ahead))
        store.mark_seen("b", store.read_state("b").unread)
        found = [(each.message.channel, each.is_unread, each.sent_ms - now_ms) for each in latest_mentions(store, 10)]
        assert found == [("a", True, 9), ("c", True, 3), ("b", False, 2), ("a", True, 1)]
        assert [each.message.channel for each in latest_mentions(store, 2)] == ["a", "c"]


def test_changes_of_messages_keep_their_earliest_time() -> None:
    with new_store() as store:
        store.ingest(raws(BOB.text("a", "late", at=900), BOB.text("a", "early", at=500)))
        late, early = store.messages("a").messages
    changes = CabalChanges()
    assert changes.is_empty
    for message in (late, early, late):
        changes.add(MessageAdded(message))
    assert (changes.channels, changes.has_lists, changes.is_all) == ({"a": 500}, True, False)
    changes.join(CabalChanges({"a": 700, "b": 3}))
    assert changes.channels == {"a": 500, "b": 3}
    changes.join(CabalChanges({"a": 100}))
    assert changes.channels["a"] == 100
    changes.add(MessageDeleted(late.hash, "b"))
    assert (changes.channels["b"], changes.is_all) == (0, False)
    changes.add(MessageDeleted(late.hash, None))
    assert changes.is_all
    joined = CabalChanges()
    joined.join(changes)
    joined.join(CabalChanges())
    assert joined.is_all
    assert joined.has_lists
    other = CabalChanges()
    other.add(ChannelAdded("c"))
    assert not other.is_empty
    assert not other.is_all
    assert not CabalChanges(is_all=True).is_empty
