"""Parts of the client without a screen: cleaning of text, lines, typed commands, completion, the history window."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC
from pathlib import Path

import pytest
import wcwidth
from chatting import cabals_on
from hypothesis import given
from hypothesis import strategies as st
from people import BOB, START_MS, raws
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from waiting import wait_until

from cablestore import CableStore
from cablestore.chat import commands
from cablestore.chat.cabal import Cabal
from cablestore.chat.command_functions import channels_in
from cablestore.chat.commands import SentTexts, completions
from cablestore.chat.display_limits import MAX_HELD
from cablestore.chat.drafts import Drafts
from cablestore.chat.held_text import held_text, with_sequences
from cablestore.chat.lines import CabalChannel
from cablestore.chat.safe_text import clean, clusters, fit, most_cells, wrap
from cablestore.chat.timeline import Timeline, local, short_name
from cablestore.cli.output import safe
from cablestore.errors import ArgumentError, NotFoundError
from cablestore.search.query import with_prefixes
from cablestore.store import searching
from cablestore.store.emotes import as_emote, emote_of, shown_parts

WORD = b"zweiundvierzigstes"
TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
WORDS = (
    "\u0645\u06cc\u200c\u0631\u0648\u0645",  # Persian, with a non-joiner
    "\u200f(\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd)\u200e \u061c1",  # Hebrew with points, and direction marks
    "\u0915\u094d\u200d\u0937\u093f \u0939\u093f\u0928\u094d\u0926\u0940",  # Hindi, with a joiner
    "\u1000\u103c\u103d\u1031\u1038",  # Burmese
    "\u0f56\u0f66\u0f92\u0fb2\u0f74\u0f56\u0f66",  # Tibetan, a stack of three below one
    "\u17a2\u17d2\u1793\u1780\u200b\u1781\u17d2\u1798\u17c2\u179a",  # Khmer, with a space of no width
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f44d\U0001f3fd",  # a family, a heart, a thumb
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f \U0001f1e9\U0001f1ea",  # flags
    "e\u0323\u0302\u0301\u0308",
    "a\u2060b\xadc\ue0b0",
)


@given(st.text())
def test_cleaned_text_contains_no_control_characters(text: str) -> None:
    for lines in (False, True):
        for character in clean(text, lines=lines):
            is_break = lines and character == "\n"
            assert is_break or unicodedata.category(character) not in {"Cc", "Cs", "Zl", "Zp"}
            assert unicodedata.bidirectional(character) not in TURNS


def test_control_sequences_are_replaced() -> None:
    assert clean("\x1b[2J\x07\u202e\x9b") == "\ufffd[2J\ufffd\ufffd\ufffd"
    assert clean("a\tb\r\nc", lines=True) == "a    b\nc"
    assert clean("a\rb\u2028c", lines=True) == "a\nb\nc"
    assert clean("h" + "\u0301" * 99) == "h" + "\u0301" * 30
    assert clean("\u2066\u2067\u2068\u2069\u202a\u202b\u202c\u202d") == "\ufffd" * 8


@pytest.mark.parametrize("text", WORDS)
def test_words_of_all_scripts_are_displayed_unchanged(text: str) -> None:
    assert clean(text, lines=True) == clean(text) == safe(text) == text


@given(st.lists(st.sampled_from([*WORDS, " ", "x"])).map("".join), st.integers(4, 40))
def test_lines_fit_every_terminal_and_do_not_split_characters(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert [c for line in lines for c in clusters(line) if c != " "] == [c for c in clusters(text) if c != " "]
    for line in lines:
        assert len(clusters(line)) == 1 or sum(max(wcwidth.wcwidth(c), 0) for c in line) <= width
        assert len(clusters(line)) == 1 or cell_len(line) <= width
        assert cell_len(fit(line, width - 1)) <= width - 1


@given(st.text(alphabet=st.sampled_from("abc 東京\n\u0301")), st.integers(2, 20))
def test_wrapped_lines_fit_and_contain_all_text(text: str, width: int) -> None:
    text = clean(text, lines=True)
    lines = wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 8, ["one two", "three"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("a\n\n  b", 8, ["a", "", "  b"]),
        ("東京は晴れThe sun", 12, ["東京は晴れ", "The sun"]),
        ("", 8, [""]),
    ],
)
def test_lines_break_between_words(text: str, width: int, lines: list[str]) -> None:
    assert wrap(text, width) == lines


def test_long_and_invisible_names_are_shortened() -> None:
    assert short_name("ab" * 32) == "abababab"
    assert short_name(" \x1b[31mann ") == "\N{REPLACEMENT CHARACTER}[31mann"
    assert short_name("  ") == "?"
    assert fit("alexandria", 5) == "alex…"
    assert local(2**63, UTC).year == 1970


def test_typed_lines_are_parsed_as_commands_or_text() -> None:
    assert commands.read("hello / there") == ("", "hello / there")
    assert commands.read("//hello") == ("", "/hello")
    assert commands.read("/join  garden ") == ("join", "garden")
    assert commands.read("/topic") == ("topic", "")
    for text in ("/", "/ and", "/etc/hosts is a file"):
        assert commands.read(text) == ("", text)
    assert commands.read("/NICK ann \t") == ("nick", "ann")
    assert commands.read("/part\t#garden") == ("leave", "#garden")
    assert commands.read("/j #a") == ("join", "#a")
    assert commands.read("/me waves\nand leaves") == ("me", "waves\nand leaves")
    assert commands.read("/quit bye all") == ("quit", "bye all")
    for wrong in ("/dance", "/join", "/hide ", "/me", "/msg bob hi", "/delete it"):
        with pytest.raises(
            ArgumentError, match=r"Unknown command /|needs an argument: /|does not accept an argument: "
        ):
            commands.read(wrong)


def test_typed_channel_names_find_known_channels() -> None:
    known = ["default", "Garden", "a, b", "caf\u00e9", "Twin", "twin"]
    assert channels_in("#default", known) == ["default"]
    assert channels_in("#x, #y,z", known) == ["x", "y", "z"]
    assert channels_in("#x #y z", known) == ["x", "y z"]
    assert channels_in("a, b", known) == ["a, b"]
    assert channels_in("garden", known) == ["Garden"]
    assert channels_in("cafe\u0301, CAFE\u0301", known) == ["caf\u00e9"]
    assert channels_in("##linux", known) == ["#linux"]
    assert channels_in("twin", known) == ["twin"]
    for wrong in ("TWIN", "#", ", ,"):
        with pytest.raises(NotFoundError):
            channels_in(wrong, known)


def test_every_command_has_help() -> None:
    for name, command in commands.COMMANDS.items():
        for each in (name, f"/{name}", *command.aliases):
            assert command.meaning in commands.explained(each)
    with pytest.raises(ArgumentError, match="Unknown command /dance"):
        commands.explained("dance")


@pytest.mark.parametrize(
    ("text", "emote"),
    [("/me waves", "waves"), ("/me", ""), ("/me  two", " two"), ("/mean it", None), (" /me waves", None), ("", None)],
)
def test_emotes_are_recognized(text: str, emote: str | None) -> None:
    assert emote_of(text) == emote
    if emote:
        assert as_emote(emote) == text


def test_the_excerpt_of_an_emote_does_not_contain_the_command() -> None:
    assert shown_parts([("/me ", False), ("waves", True)]) == [("waves", True)]
    assert shown_parts([("/", False), ("me", True), (" waves", False)]) == [("waves", False)]
    assert shown_parts([("…far ", False), ("waves", True)]) == [("…far ", False), ("waves", True)]


def test_emotes_are_displayed_on_separate_lines() -> None:
    with CableStore.in_memory() as store:
        store.ingest(
            raws(
                BOB.named("bob", at=START_MS),
                *(BOB.text("x", text, at=START_MS + at) for at, text in enumerate(("hi", "/me waves\nto all", "bye"))),
            )
        )
        timeline = Timeline(UTC)
        timeline.set_newest(store.messages("x").messages, has_older=False)

        def drawn() -> list[tuple[str, str]]:
            return [(row.name, row.text) for row in timeline.rows(60, 9)][1:]

        assert drawn() == [("bob", "hi"), ("*", "bob waves"), ("", "to all"), ("bob", "bye")]
        store.ingest(raws(BOB.named("robert", at=START_MS + 10)))
        timeline.set_newest(store.messages("x").messages, has_older=False)
        assert ("*", "robert waves") in drawn()


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("tomato", "tomato*"),
        ("to be", "to be"),
        ('"tomato soup" hot', '"tomato soup" hot*'),
        ("rust*", "rust*"),
        ('a "b', 'a "b'),
        ("don't", "don't*"),
        ("why?", "why?"),
    ],
)
def test_the_words_of_a_search_become_prefixes(text: str, query: str) -> None:
    assert with_prefixes(text) == query


def test_commands_channels_and_names_are_completed() -> None:
    def complete(text: str) -> list[str]:
        return completions(text, ["garden", "kitchen"], ["Ann", "andy", "bob"])

    assert complete("/jo") == ["/join "]
    assert complete("/join ga") == ["/join garden "]
    assert complete("/mute k") == ["/mute kitchen "]
    assert complete("see #k") == ["see #kitchen "]
    assert complete("an") == ["andy: ", "Ann: "]
    assert complete("hello @b") == ["hello @bob "]
    assert complete("hello ") == []
    assert completions("/hide Ann L", [], ["Ann Lee", "bob"]) == ["/hide Ann Lee "]
    assert completions("Ann ", [], ["Ann Lee", "Ann Lo"]) == ["Ann Lee: ", "Ann Lo: "]
    assert completions("thanks @ann l", [], ["Ann Lee"]) == ["thanks @Ann Lee "]
    assert completions("so (bo", [], ["bob"]) == ["so (bob "]
    assert completions("/me greets bo", [], ["bob"]) == ["/me greets bob "]
    assert completions("/join #a, my ga", ["my garden"], []) == ["/join #a, my garden "]
    assert completions("/PART my ", ["my garden"], ["my"]) == ["/PART my garden "]
    assert completions("limbo", [], ["bob"]) == []


def test_sent_texts_are_recalled() -> None:
    history = SentTexts()
    assert history.step(-1, "now") is None
    for text in ("first", "second", "second"):
        history.add(text)
    assert [history.step(-1, "now"), history.step(-1, ""), history.step(-1, "")] == ["second", "first", None]
    assert [history.step(1, ""), history.step(1, ""), history.step(1, "")] == ["second", "now", None]


@pytest.mark.thorough
def test_the_timeline_moves_over_a_history_without_gaps() -> None:
    with CableStore.in_memory() as store:
        store.ingest(
            raws(*(BOB.text("default", str(at), at=START_MS + at) for at in range(3 * MAX_HELD))), verify=False
        )
        timeline = Timeline(UTC)
        page = store.messages("default", 200)
        timeline.set_newest(page.messages, has_older=page.cursor is not None)
        while timeline.has_older:
            page = store.messages("default", 200, cursor=timeline.messages[0].cursor)
            timeline.add_older(page.messages, has_older=page.cursor is not None)
            texts = [int(message.text) for message in timeline.messages]
            assert texts == list(range(texts[0], texts[0] + len(texts)))
            assert len(texts) <= MAX_HELD
        assert texts[0] == 0
        assert timeline.has_newer
        rows = timeline.rows(40, 9)
        assert sum(row.message is None for row in rows) == 1, "one date line"


def test_a_session_ends_even_with_waiting_tasks() -> None:
    with cabals_on(CableStore.in_memory(), CableStore.in_memory()) as open_cabals:
        assert [open_cabal.connection for open_cabal in open_cabals] == ["offline", "offline"]


def test_words_of_a_removed_message_are_erased_after_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search leaves erasing them from a large index to later work of the client."""
    monkeypatch.setattr(searching, "PURGES_BEFORE_ANSWER", 0)
    folder = tmp_path / "store"
    store, post = CableStore.open(folder), BOB.text("default", f"{WORD.decode()} word")
    store.ingest(raws(post, *(BOB.text("default", f"word {at}") for at in range(49))))
    with cabals_on(store) as [open_cabal]:
        assert len(asyncio.run(open_cabal.search("word")).hits) == 50
        assert WORD in b"".join(path.read_bytes() for path in folder.glob("search.sqlite*"))
        store.discard([post.hash])
        assert len(asyncio.run(open_cabal.search("word")).hits) == 49
        wait_until(lambda: WORD not in b"".join(path.read_bytes() for path in folder.glob("search.sqlite*")))


# --- limits -----------------------------------------------------------------------------------------


def test_text_is_cut_and_chopped_at_its_width() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # 2 cells, or 6 on some terminals
    assert [fit("abc", width) for width in (3, 2, 1, 0)] == ["abc", "a…", "…", ""]
    assert [most_cells(text) for text in ("abc", "東", family, "e\u0301")] == [3, 2, 6, 1]
    assert [fit(f"{family}x", width) for width in (7, 6)] == [f"{family}x", f"{family}…"]
    assert wrap("abcdef", 1) == ["ab", "cd", "ef"]
    assert wrap("ab cd", 5) == ["ab cd"]
    assert wrap("abcde f", 5) == ["abcde", "f"]
    assert wrap("abcdef gh", 5) == ["abcde", "f gh"]
    assert wrap("東京東京", 5) == ["東京", "東京"]
    assert wrap("ab東", 4) == ["ab東"]
    assert wrap("abc東", 4) == ["abc", "東"]
    assert clusters("x" + "\u0301" * 130) == ["x" + "\u0301" * 63, "\u0301" * 64, "\u0301" * 3]


def test_text_of_uncertain_width_is_held_in_its_cells() -> None:
    base = Style()

    def drawn(text: str, width: int) -> str:
        segments = held_text([Segment(text, base)], base, width, 7)
        return with_sequences("".join(segment.text for segment in segments))

    assert [drawn("ab", width) for width in (2, 3, 1)] == ["ab", "ab ", "ab"]
    assert drawn("\U0001f469\u200d\U0001f467", 3) == "   \x1b[8G\U0001f469\u200d\U0001f467\x1b[11G"
    assert drawn("\U0001f469\u200d\U0001f467", 1) == "\U0001f469\u200d\U0001f467"


def test_the_history_of_sent_texts_is_limited() -> None:
    history = SentTexts()
    for number in range(201):
        history.add(str(number))
    found = [history.step(-1, "now") for _ in range(201)]
    assert found == [*(str(number) for number in range(200, 0, -1)), None]
    history.add("1")
    assert [history.step(-1, "now"), history.step(-1, "")] == ["1", "200"]


def test_only_words_near_the_cursor_are_completed() -> None:
    name = "n" * 80
    assert completions(f"x {name[:79]}", [], [name]) == [f"x {name} "]
    assert completions(f"/hide {name[:80]}", [], [name]) == [f"/hide {name} "]
    assert completions("a_bo", [], ["bob"]) == []
    assert completions("@", [], ["bob"]) == []
    assert completions("//jo", [], []) == []
    assert completions("bo", [], ["bob", "Bo", "bob"]) == ["Bo: ", "bob: "]


def test_typed_texts_that_are_kept_and_channels_that_are_shown() -> None:
    kept = [text for text in ("hi", "/me waves", "/topic x", "/join a", "/dance", "//x") if commands.is_a_message(text)]
    assert kept == ["hi", "/me waves", "/topic x", "//x"]
    assert commands.joined_channel("/join a, B", ["b"]) == "b"
    assert [commands.joined_channel(text, []) for text in ("/join #", "/leave a", "hi", "/join")] == [""] * 4


class Box:
    """Typing box and client of drafts: it returns each text once, and keeps work and timers."""

    def __init__(self) -> None:
        self.typing = self
        self.place = CabalChannel(0, "garden")
        self.text: str | None = None
        self.works: list[Callable[[], Awaitable[None]]] = []
        self.timers: list[Callable[[], None]] = []

    def take_draft(self) -> str | None:
        text, self.text = self.text, None
        return text

    def do(self, work: Callable[[], Awaitable[None]]) -> None:
        self.works.append(work)

    def set_timer(self, delay: float, callback: Callable[[], None]) -> None:
        assert 0 < delay <= 1
        self.timers.append(callback)

    async def run(self) -> None:
        while self.works:
            await self.works.pop(0)()


def test_drafts_are_written_after_a_delay_and_rejected_ones_are_reported() -> None:
    store, too_long = CableStore.in_memory(), "x" * 1_000_000

    async def work(open_cabals: Sequence[Cabal]) -> None:
        box = Box()
        drafts = Drafts(box, open_cabals)
        drafts.write_soon()
        assert box.timers == []
        for text in ("h", "he"):
            box.text = text
            drafts.write_soon()
        assert (len(box.timers), store.local.draft("garden")) == (1, "")
        assert await drafts.read(box.place) == "he"
        box.timers.pop()()
        await box.run()
        assert store.local.draft("garden") == await drafts.read(box.place) == "he"
        box.text = "hel"
        drafts.write_soon()
        assert len(box.timers) == 1
        drafts.keep(CabalChannel(0, "shed"), "unsent")
        drafts.keep(CabalChannel(0, "shed"), "later")
        drafts.take()
        await box.run()
        assert (store.local.draft("shed"), store.local.draft("garden")) == ("unsent", "hel")
        box.text = ""
        assert await drafts.write_last() == ""
        assert store.local.draft("garden") == ""
        box.text = too_long
        report = await drafts.write_last()
        assert report.startswith("cablestore: cannot save unsent drafts: ")
        assert report.splitlines()[1:] == [f"  #garden: {too_long}"]

    with cabals_on(store) as open_cabals:
        asyncio.run(work(open_cabals))
