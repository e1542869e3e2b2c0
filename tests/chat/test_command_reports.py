"""Reports of typed commands, on stores of this process and without a screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from chatting import cabals_on, new_store
from people import ANN, BOB, CYD, Person, raws
from textual.screen import Screen

from cablestore import CableStore
from cablestore.chat import commands
from cablestore.chat.cabal import Cabal
from cablestore.chat.lines import CabalChannel
from cablestore.chat.message_actions import MessageActions
from cablestore.errors import CableStoreError
from cablestore.moderation import UserRole

DAVE = Person("dave d")


class Recorder:
    """Client that records what commands request. It answers each window with `answer`."""

    def __init__(self, cabal: Cabal) -> None:
        self.windows = self
        self.requests: list[tuple[object, ...]] = []
        self.answer: object = None
        self.titles: list[str] = []
        self._cabal = cabal
        self._works: list[Callable[[], Awaitable[object]]] = []

    def cabal_of(self, place: CabalChannel) -> Cabal:
        assert place.cabal == 0
        return self._cabal

    async def show_channel(self, place: CabalChannel) -> None:
        self.requests.append(("channel", place.channel))

    def show_end(self, place: CabalChannel) -> None:
        self.requests.append(("end of", place.channel))

    async def confirm_delete_last(self, place: CabalChannel) -> None:
        await MessageActions(self).delete_last(place)

    async def end(self) -> None:
        self.requests.append(("quit",))

    def show_help(self) -> None:
        self.requests.append(("help",))

    async def show_invitation(self, place: CabalChannel) -> None:
        self.requests.append(("invitation", place.cabal))

    async def show_found(self, place: CabalChannel, text: str) -> None:
        self.requests.append(("search", place.cabal, text))

    async def show_mentions(self) -> None:
        self.requests.append(("mentions",))

    def show_notice(self, text: str) -> None:
        self.requests.append(("notice", text))

    def copy_to_clipboard(self, text: str) -> None:
        self.requests.append(("copied", text))

    def do(self, work: Callable[[], Awaitable[object]]) -> None:
        self._works.append(work)

    run_dialog = do

    async def answer_of(self, screen: Screen[Any]) -> Any:
        return self.answer

    def run(self, text: str, channel: str = "default") -> str:
        """Run a typed text and all work that it starts. Return its report."""

        async def work() -> str:
            report = await commands.run(text, self, CabalChannel(0, channel))
            while self._works:
                await self._works.pop(0)()
            return report

        return asyncio.run(work())

    def fails(self, text: str, channel: str = "default") -> str:
        """Run a typed text that fails, and return the error."""
        with pytest.raises(CableStoreError) as error:
            self.run(text, channel)
        return str(error.value)

    def act(self, number: int, answer: object, channel: str = "default") -> list[tuple[object, ...]]:
        """Choose an action on the message at `number`, newest first. Return the requests of the action."""
        self.answer = answer

        async def work() -> None:
            page = await self._cabal.page(channel, 10)
            await MessageActions(self).choose(self._cabal, page.messages[number])
            while self._works:
                await self._works.pop(0)()

        before = len(self.requests)
        asyncio.run(work())
        return self.requests[before:]


@pytest.fixture
def store() -> CableStore:
    """Return a store of ann, in #default and #garden, with bob and somebody without a name."""
    store = new_store()
    store.set_name("ann")
    for channel in ("default", "garden"):
        store.join(channel)
    store.ingest(raws(BOB.named("bob"), BOB.text("default", "hi"), BOB.text("shed", "tools"), CYD.text("shed", "x")))
    return store


@pytest.fixture
def client(store: CableStore) -> Iterator[Recorder]:
    with cabals_on(store) as [cabal]:
        yield Recorder(cabal)


def joined(store: CableStore) -> list[str]:
    return [channel.name for channel in store.channels() if channel.is_joined]


def test_texts_and_emotes_are_posted_and_the_end_of_their_channel_is_shown(store: CableStore, client: Recorder) -> None:
    assert client.run("hello", "garden") == ""
    assert client.run("/me digs") == ""
    assert client.requests == [("end of", "garden"), ("end of", "default")]
    assert [m.text for m in store.messages("garden").messages] == ["hello"]
    assert store.messages("default").messages[0].text == "/me digs"


def test_commands_open_their_windows(client: Recorder) -> None:
    for text in ("/help", "/invite", "/search a b", "/mentions", "/quit now"):
        assert client.run(text) == ""
    assert client.requests == [("help",), ("invitation", 0), ("search", 0, "a b"), ("mentions",), ("quit",)]
    assert client.run("/help part").startswith("/part [CHANNEL, ...]: ")


def test_channels_are_joined_and_left(store: CableStore, client: Recorder) -> None:
    assert client.run("/join garden") == "Nothing changed: you are already in #garden"
    assert client.run("/join garden, shed") == ""
    assert client.requests == [("channel", "garden"), ("channel", "shed")]
    assert joined(store) == ["default", "garden", "shed"]
    assert "Cannot leave #nowhere" in client.fails("/leave", "nowhere")
    assert client.run("/leave shed, #garden").startswith("You left #shed, #garden. ")
    assert "Cannot leave #shed: " in client.fails("/leave shed, default")
    assert "Channel not found: #nowhere" in client.fails("/leave nowhere, default")
    assert joined(store) == ["default"]


def test_a_closed_channel_is_left_and_the_next_joined_one_is_shown(store: CableStore, client: Recorder) -> None:
    assert "Expected one channel, got 2: #default, #shed" in client.fails("/close default, shed")
    assert "Cannot close #shed: you are not a member" in client.fails("/close shed")
    assert client.run("/close garden") == "You left #garden"
    assert client.requests == []
    client.run("/join garden")
    assert client.run("/close") == "You left #default"
    assert client.run("/close", "shed") == ""
    assert client.run("/close", "garden") == "You left #garden"
    assert client.run("/close", "nowhere") == ""
    shown = [request[1] for request in client.requests[1:]]
    assert shown == ["garden", "garden", "default", "default"]
    assert joined(store) == []


def test_the_only_channel_cannot_be_closed() -> None:
    with cabals_on(new_store()) as [cabal]:
        client = Recorder(cabal)
        client.run("/join alone")
        assert "Cannot close #alone: it is the only channel" in client.fails("/close", "alone")
        assert client.run("/close", "nowhere") == ""
        assert client.requests == [("channel", "alone")] * 2


def test_members_are_listed(store: CableStore, client: Recorder) -> None:
    store.moderation.set_role(BOB.key, UserRole.MOD)
    assert client.run("/names") == "2 members of #default: @bob, ann"
    assert client.run("/names garden") == "1 member of #garden: ann"
    assert client.run("/names", "nowhere") == "0 members of #nowhere"


def test_topics_are_shown_set_and_cleared(store: CableStore, client: Recorder) -> None:
    assert client.run("/topic") == "#default has no topic. /topic TEXT sets the topic"
    assert client.run("/topic -") == "Nothing changed: #default has no topic"
    assert client.run("/topic what grows") == ""
    assert client.run("/topic") == "Topic of #default: what grows"
    assert client.run("/topic what grows") == "Nothing changed: #default already has this topic"
    assert store.topic("default") == "what grows"
    assert client.run("/topic -delete") == "The topic of #default is cleared. It was: what grows"
    assert store.topic("default") == ""


def test_channels_are_muted(store: CableStore, client: Recorder) -> None:
    assert client.run("/unmute") == "Nothing changed: #default is not muted"
    assert client.run("/mute") == "#default is muted"
    assert client.run("/mute") == "Nothing changed: #default is already muted"
    assert client.run("/mute shed") == "#shed is muted"
    assert client.run("/unmute") == "#default is unmuted"
    assert client.run("/mute", "nowhere") == "#nowhere is muted"
    assert set(store.local.muted()) == {"nowhere", "shed"}


def test_names_are_shown_and_changed(store: CableStore, client: Recorder) -> None:
    assert client.run("/nick") == "Your name is ann"
    assert client.run("/nick ann") == "Nothing changed: your name is already ann"
    assert client.run("/nick anna") == "Your name is anna"
    report = client.run("/nick bob")
    assert report == f"Your name is bob. Another user also has this name: {BOB.key.hex()[:16]}. Choose a different name"
    with cabals_on(new_store("nobody")) as [cabal]:
        assert Recorder(cabal).run("/nick") == "You have no name. /nick NAME sets your name"


def test_users_are_described(store: CableStore, client: Recorder) -> None:
    assert client.run("/whois bob") == f"bob: user\npublic key {BOB.key.hex()}\nin #default, #shed"
    store.moderation.set_role(BOB.key, UserRole.MOD)
    assert client.run("/whois bob").startswith("bob: mod\n")
    assert client.run("/whois ann").startswith("ann (you): user\n")
    store.ingest(raws(DAVE.named("Dave D")))
    assert client.run("/whois dave d").splitlines()[2] == "not in a channel"
    store.moderation.hide(users=[BOB.key], channel="shed", reason="noise")
    assert client.run("/whois bob").splitlines()[3].startswith("hidden in #shed by ann, 20")
    assert client.run("/whois bob").endswith(": noise")
    assert len(client.run("/whois bob").splitlines()) == 4


def test_users_are_hidden_and_blocked_and_all_of_it_is_undone(store: CableStore, client: Recorder) -> None:
    digits = BOB.key.hex()
    assert client.run("/hidden") == "Nobody is hidden"
    assert client.run("/blocked") == "Nobody is blocked"
    assert client.fails("/hide ann") == "You cannot hide yourself. Choose another user"
    assert client.run("/hide bob") == f"bob ({digits[:8]}) is hidden, only for you. /unhide bob undoes it"
    assert "bob is already hidden by you, privately. Nothing changed" in client.fails("/hide bob")
    assert client.run("/hidden").startswith(f"bob {digits[:16]}: hidden privately by ann, 20")
    assert client.run("/blocked") == "Nobody is blocked"
    store.moderation.hide(users=[BOB.key], channel="shed")
    undone = f"bob ({digits[:8]}): undid your private hide and your public hide in #shed"
    assert client.run("/unhide bob") == undone
    assert client.fails("/unhide bob") == "bob is not hidden. Nothing changed. /hidden lists hidden users"
    store.moderation.block([CYD.key])
    assert client.fails(f"/block {CYD.key.hex()}").startswith(
        f"{CYD.key.hex()[:8]} is already blocked by you, publicly"
    )
    assert client.run(f"/unblock {CYD.key.hex()}") == f"{CYD.key.hex()[:8]}: undid your public block"
    assert client.run("/block bob") == f"bob ({digits[:8]}) is blocked, only for you. /unblock bob undoes it"
    assert store.user(BOB.key).is_blocked
    assert client.run("/unblock bob") == f"bob ({digits[:8]}): undid your private block"
    assert not store.user(BOB.key).is_blocked


def test_actions_of_others_are_undone_only_for_the_user() -> None:
    """ann is a moderator of the store's user, who sees what she hides and blocks."""
    store = new_store()
    store.moderation.join_with_seed(bytes([UserRole.ADMIN]) + ANN.key)
    hidden, shown = BOB.text("default", "rude"), BOB.text("default", "polite")
    store.ingest(raws(BOB.named("bob"), hidden, shown, CYD.named("cyd"), CYD.text("default", "hi")))
    with CableStore.in_memory(identity=ANN.identity) as of_ann:
        of_ann.ingest(raws(BOB.named("bob"), hidden, CYD.named("cyd"), CYD.text("default", "hi")))
        of_ann.moderation.hide(users=[BOB.key])
        of_ann.moderation.block([CYD.key])
        store.ingest([post.raw for post in of_ann.posts_by(ANN.key)])
    assert store.user(BOB.key).is_hidden
    assert store.user(CYD.key).is_blocked
    with cabals_on(store) as [cabal]:
        client = Recorder(cabal)
        digits = BOB.key.hex()[:8]
        expected = f"bob ({digits}) is no longer hidden for you. Other members hid this user"
        assert client.run("/unhide bob") == expected
        expected = f"cyd ({CYD.key.hex()[:8]}) is no longer blocked for you. Other members blocked this user"
        assert client.run("/unblock cyd") == expected
        assert not store.user(BOB.key).is_hidden
        assert not store.user(CYD.key).is_blocked


# --- one message ------------------------------------------------------------------------------------


def test_the_last_own_message_is_deleted_after_confirmation(store: CableStore, client: Recorder) -> None:
    assert client.fails("/delete").startswith("None of your messages is near the end of the channel")
    for text in ("one", "two"):
        store.post("default", text)
    store.ingest(raws(BOB.text("default", "three")))
    client.run("/delete")
    assert len(store.messages("default").messages) == 4
    client.answer = True
    client.run("/delete")
    assert {m.text for m in store.messages("default").messages} == {"hi", "one", "three"}


def test_actions_on_a_message(store: CableStore, client: Recorder) -> None:
    store.post("default", "mine")
    assert client.act(0, "copy") == [("copied", "mine"), ("notice", "Copied, if the terminal allows it")]
    assert client.act(1, None) == []
    [(_, notice)] = client.act(1, "hide")
    assert notice == "The message is hidden, only for you. To show it again, press Enter on it"
    assert [m.text for m in store.messages("default").messages] == ["mine"]
    assert client.run("/hidden").startswith(f"bob {BOB.key.hex()[:16]}: hidden message privately in #default by ann")
    assert client.act(1, "copy") == [("notice", "Nothing to copy. Escape chooses a message")]
    assert client.act(1, "unhide") == [("notice", "The message is shown again")]
    with pytest.raises(CableStoreError, match=r"this message itself is not hidden\. /unhide NAME"):
        client.act(1, "unhide")
    client.run("/hide bob")
    with pytest.raises(CableStoreError, match=r"All messages of bob are hidden\. /unhide bob shows them"):
        client.act(1, "unhide")
    client.answer = True
    client.act(0, "delete")
    assert [m.is_hidden for m in store.messages("default", hidden="mark").messages] == [True]
