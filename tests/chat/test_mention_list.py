"""List of messages that mention the user: keys and the resulting screen, alone and beside `serve`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from people import BOB, CYD, raws
from serving import HERE, Served
from terminals import CTRL_Q, Screen, Start
from waiting import wait_until

from cablestore import CableStore

Serve = Callable[..., Served]
F6 = "\x1b[17~"
DAY_MS = 86_400_000


def fill(folder: Path, *texts: tuple[str, str, int], name: str = "ann") -> None:
    """Create a store whose user has a name, with messages of bob: channel, text and day."""
    with CableStore.open(folder) as store:
        store.set_name(name)
        name_ms = next(store.posts_by(store.identity.public_key)).timestamp_ms
        posts = (
            BOB.text(channel, text, at=name_ms + day * DAY_MS + at) for at, (channel, text, day) in enumerate(texts)
        )
        store.ingest(raws(BOB.named("bob"), *posts))
        store.ingest(raws(CYD.text("garden", "ann: from somebody hidden", at=name_ms + DAY_MS)))
        store.moderation.hide(users=[CYD.key], private=True)


@pytest.mark.thorough
@pytest.mark.parametrize("is_served", [False, True])
def test_mentions_of_all_channels_and_cabals_lead_to_their_messages(
    start_chat: Start, serving: Serve, tmp_path: Path, is_served: bool
) -> None:
    many = [("garden", f"line {number}", 1) for number in range(60)]
    fill(tmp_path / "one", ("garden", "@ann: the rake\nis broken", 1), *many, ("shed", "where is ann?", 3))
    fill(tmp_path / "two", ("kitchen", "Ann, tea?", 2))
    server = serving(tmp_path / "one", "--listen", HERE) if is_served else None
    if server is not None:
        server.address  # noqa: B018 - it is ready
    client = start_chat("-s", "one", "--also", "two", "--channel", "quiet")
    sees = Screen(client)
    sees.shows("Write a message")
    client.press(F6)
    sees.shows("3 messages with mentions of you, 3 unread")
    places = [sees.text.index(text) for text in ("where is ann?", "Ann, tea?", "@ann: the rake is broken")]
    assert places == sorted(places)
    assert "somebody hidden" not in sees.text
    client.press("\x1b[B\x1b[B\r\r")  # the second Enter is ignored
    wait_until(lambda: "mentions of you" not in sees.text, lambda: sees.text)
    sees.shows("is broken")
    assert "is broken" in sees.text.split("@ann: the rake")[1].split("line 0")[0]
    wait_until(lambda: re.search(r"#garden +@1", sees.text) is None, lambda: sees.text)  # the mention is read
    client.type("/mentions")
    sees.shows("mentions of you, 2 unread")
    client.press("\x1b[B\r")
    sees.finds(r"bobAnn,tea\?")
    wait_until(lambda: "mentions of you" not in sees.text, lambda: sees.text)
    assert client.end(CTRL_Q) == 0
    assert server is None or server.stop() == 0


@pytest.mark.thorough
def test_without_mentions_the_window_shows_a_note(start_chat: Start, tmp_path: Path) -> None:
    client = start_chat("-s", "store")
    sees = Screen(client)
    sees.shows("Write a message")
    client.press(F6)
    sees.shows("No mentions of you yet")
    client.press("\r\x1b")
    wait_until(lambda: "mentions of you" not in sees.text, lambda: sees.text)
    assert client.end(CTRL_Q) == 0
