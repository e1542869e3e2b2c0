"""Keys and pastes as a terminal sends them: typed text is signed unchanged, and never changes a message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from people import BOB, raws
from terminals import CTRL_Q, CTRL_Y, Screen, Start, Terminal
from waiting import wait_until

from cablestore import CableStore
from cablestore.chat.display_limits import MAX_TYPED
from cablestore.chat.typed_text import Paste, TerminalInput, as_typed

CTRL_C = "\x03"
ESCAPE = "\x1b[27u"
"""Escape as a complete sequence: after a lone escape character, the client waits for a continuation."""
UP, DOWN = "\x1b[A", "\x1b[B"

# ruff: noqa: RUF001 - letters of these scripts are tested

TEXTS = [
    "می\u200cخواهم \u200fسلام\u200e",  # Persian: a joiner that divides, marks of direction
    "وَلَقَدْ يَسَّرْنَا \u061cالقرآن",  # Arabic with vowels
    "שָׁלוֹם!\u200f",
    "क्षत्रिय र्\u200dय श्\u200cर",  # Hindi with both joiners
    "ที่นี่ น้ำ",  # Thai: two marks over one letter
    "ភាស\u200bខ្មែរ",  # Khmer with a zero width space
    "မြန်မာ မြို့",
    "བོད་སྐད་ སྒྲུབ",
    "\u1112\u1161\u11ab\u1100\u1173\u11af",  # Korean in parts
    "한글",
    "👩\u200d👩\u200d👧\u200d👦 ❤\ufe0f ☎\ufe0e 👍🏽",
    "🇰🇷🇨🇭 🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "1\ufe0f\u20e3 #\ufe0f\u20e3",
    "h\u0300\u0301\u0302\u0303\u0304\u0305\u0306 e\u0301",
    "\u202eabc\u202c \u2066x\u2069 \u2060\ufeff\u00ad",
    "日本\u3000語\u00a0x\u202f1",
    "\ue0b0 \U000f0000",
    " \u2028x\u2029",
]
"""Texts that arrive unchanged, typed and pasted."""
PASTES = [
    (b"first\rsecond\r\nthird\nfourth\r\n\r\nlast", "first\nsecond\nthird\nfourth\n\nlast"),
    (b"if x:\r\treturn  ", "if x:\n\treturn  "),
    (b"a\x1b[31mred\x1b[0m\rb", "a[31mred[0m\nb"),
    (b"ends in \x1b", "ends in "),
    (b"ends in \x1b[2", "ends in [2"),
    (b"\x1b[200~again", "[200~again"),
    (b"mouse \x1b[<0;5;5M quit \x11 interrupt \x03", "mouse [<0;5;5M quit  interrupt "),
    (b"nul\x00 bell\x07 back\x08 delete\x7f c1\xc2\x9b", "nul bell back delete c1"),
    (b"half \xed\xa0\xbd bytes \xff", "half \ufffd\ufffd\ufffd bytes \ufffd"),
    (b"/etc/hosts is a file", "/etc/hosts is a file"),
    (b"/ and /* too", "/ and /* too"),
    (b"//join", "/join"),
]
COMMITTED = [
    ("\x1b[0;;20320:22909:19990:30028:20320:22909:19990:30028u", "你好世界你好世界"),
    ("\x1b[0;1;20013u\x1b[97;;97u\x1b[97:65;2;65u", "中aA"),
    ("\x1b[104;;128105:8205:128105:8205:128103u", "👩\u200d👩\u200d👧"),
]
"""Texts of input methods in kitty's keyboard protocol."""


def pasted(text: bytes) -> bytes:
    return b"\x1b[200~" + text + b"\x1b[201~"


def start_on(start_chat: Start, path: Path, fill: Callable[[CableStore], object]) -> tuple[Terminal, Screen]:
    with CableStore.open(path / "ann") as store:
        fill(store)
    client = start_chat("-s", "ann", "--channel", "garden")
    sees = Screen(client)
    sees.shows("Write a message")
    return client, sees


def written(path: Path) -> list[tuple[str, bool]]:
    """Return the texts in the store, each with True if it is hidden."""
    with CableStore.open(path / "ann", create=False) as store:
        page = store.messages("garden", 1_000, newest_first=False, hidden="show")
        return [(message.text, message.is_hidden) for message in page.messages]


def test_typed_and_pasted_text_is_signed_unchanged(start_chat: Start, tmp_path: Path) -> None:
    client, sees = start_on(start_chat, tmp_path, lambda store: store.join("garden"))
    samples = [
        *((text.encode(), text) for text in TEXTS),
        *((pasted(text.encode()), text) for text in TEXTS),
        *((pasted(text), expected) for text, expected in PASTES),
        *((text.encode(), expected) for text, expected in COMMITTED),
        (pasted(b"one ") + b"and " + pasted(b"two"), "one and two"),
    ]
    for keys, _ in samples:
        client.write(keys + b"\r")
    client.write(pasted(b"x" * (9 * MAX_TYPED)))
    sees.shows("too long")
    client.press("the last one")
    assert client.end(CTRL_Q) == 0
    assert [text for text, _ in written(tmp_path)] == [expected for _, expected in samples]
    with CableStore.open(tmp_path / "ann") as store:
        assert store.local.draft("garden") == "the last one"


def test_a_paste_is_rejected_after_the_keys_before_it(start_chat: Start, tmp_path: Path) -> None:
    """The notice stays, although the keys take longer than the paste."""
    client, sees = start_on(start_chat, tmp_path, lambda store: store.join("garden"))
    client.write(b"ab" * 2_000 + b"\r" + pasted(b"x" * (9 * MAX_TYPED)))
    sees.shows("too long")
    wait_until(lambda: "abab" in sees.text and "Write a message" in sees.text, lambda: sees.text)  # the keys were sent
    assert "too long" in sees.text
    client.press("sent\r")
    wait_until(lambda: "too long" not in sees.text)
    assert client.end(CTRL_Q) == 0


def test_typed_text_never_triggers_an_action_on_a_message(start_chat: Start, tmp_path: Path) -> None:
    """Text is typed after Escape, a click or a search, over a question and before it. Only keys that type no text
    trigger actions.
    """
    bob, own = "from bob", "my careful message"

    def fill(store: CableStore) -> None:
        store.ingest(raws(BOB.named("bob"), BOB.text("garden", bob)))
        store.post("garden", own)

    client, sees = start_on(start_chat, tmp_path, fill)
    client.press(ESCAPE)
    client.press("did you see\r")
    sees.shows("did you see")
    client.drag(sees.place_of(bob), sees.place_of(bob))
    client.type("hello there")
    sees.shows("hello there")
    client.press("/delete\r" + CTRL_Y + CTRL_Y)  # before the question is seen
    sees.shows("Delete this message")
    client.press("\r\ryes, y\r")
    sees.shows("yes, y")
    client.press(ESCAPE)
    wait_until(lambda: "Delete this message" not in sees.text)
    client.press(ESCAPE + DOWN + "h")
    sees.shows("yes, yh")
    assert client.end(CTRL_Q) == 0
    assert written(tmp_path) == [(text, False) for text in (bob, own, "did you see", "hello there")]


@pytest.mark.thorough
def test_the_menu_of_a_message_hides_copies_and_deletes(start_chat: Start, tmp_path: Path) -> None:
    """Hide one and show it again, copy one by keys and one with the mouse, delete one."""
    link = "https://example.org/" + "a/link/to/copy/" * 12

    def fill(store: CableStore) -> None:
        store.ingest(raws(BOB.named("bob"), BOB.text("garden", "from bob")))
        store.post("garden", link)
        store.post("garden", "first\tline\nand  the second")

    client, sees = start_on(start_chat, tmp_path, fill)
    client.press(ESCAPE + UP + UP + "\r")
    sees.shows("Hide it, only for you")
    client.press(DOWN + "\r")
    sees.shows("bob hidden")
    client.press("\r")
    sees.shows("Show it again")
    client.press("\r")
    sees.shows("bob from bob")
    client.press(ESCAPE + ESCAPE + CTRL_C)
    sees.shows("Copied")
    assert client.clipboard == "first\tline\nand  the second"
    (left, top), (right, bottom) = sees.place_of("https://"), sees.place_of("and  the second")
    client.drag((left, top), (right + 2, bottom))
    client.press(CTRL_C)
    wait_until(lambda: client.clipboard.startswith(link + "\nfirst"))
    second = sees.place_of("second")
    for _ in range(2):
        client.drag(second, second)
    client.press(CTRL_C)
    wait_until(lambda: client.clipboard == "second")
    for _ in range(2):  # the second one ends at the end of the first one
        client.drag(second, (second[0] + 2, second[1]))
    client.press(CTRL_C)
    wait_until(lambda: client.clipboard in {"sec", "seco"}, lambda: client.clipboard)
    client.press("\r")
    sees.shows("Delete it, here and on peers")
    client.press(DOWN + "\r")
    sees.shows("Delete this message")
    client.press(CTRL_Y)
    wait_until(lambda: "Delete this message" not in sees.text)
    assert client.end(CTRL_Q) == 0
    assert written(tmp_path) == [("from bob", False), (link, False)]


# --- without a terminal -------------------------------------------------------------------------------


def test_pastes_and_sequences_are_split_at_any_place() -> None:
    sent = "a\x1b[200~one \x1b[A\x1b[201~b\x1b[97:65;2u\x1b[200~\x1b[201~"
    for at in range(len(sent)):
        given, found = TerminalInput(), list[Paste | str]()
        for part in (sent[:at], sent[at:]):
            found += given.feed(part)
        keys = "".join(each for each in found if isinstance(each, str))
        assert keys == "ab\x1b[97;2u", at
        assert [each for each in found if isinstance(each, Paste)] == [("one \x1b[A", True), ("", True)]
        assert list(given.flush()) == []


def test_an_incomplete_sequence_becomes_a_key_after_a_pause_but_not_in_a_paste() -> None:
    given = TerminalInput()
    for held in ("\x1b", "\x1b[1;5"):
        assert list(given.feed(f"a{held}")) == ["a"]
        assert list(given.flush()) == [held]
        assert list(given.flush()) == []
    assert list(given.feed("\x1b[200~half \x1b")) == []
    assert list(given.flush()) == []
    assert list(given.feed("[201~")) == [("half ", True)]


@pytest.mark.parametrize("surplus", [0, 1])
def test_a_paste_above_the_limit_keeps_only_its_beginning(surplus: int) -> None:
    given = TerminalInput()
    assert list(given.feed("\x1b[200~" + "x" * (8 * MAX_TYPED + surplus))) == []
    [pasted_text] = list(given.feed("\x1b[201~"))
    assert isinstance(pasted_text, Paste)
    assert pasted_text.is_complete is not bool(surplus)
    assert (len(pasted_text.text) == 8 * MAX_TYPED) is not bool(surplus)
    assert list(given.feed("\x1b[200~next\x1b[201~")) == [("next", True)]


def test_text_to_sign() -> None:
    assert as_typed("a\r\nb\rc\td\x1be\x9f\u2028") == "a\nb\nc\tde\u2028"
    assert as_typed("\ud83d\ude00 \ud800") == "\U0001f600 \ufffd"
    assert list(TerminalInput().feed("\x1b[0;;65:1114112:66u")) == ["AB"]
