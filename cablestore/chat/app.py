"""The client: panes around a typing box, and what keys and typed commands do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from typing import ClassVar, Final

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.css.query import NoMatches
from textual.widgets import Static

from cablestore.chat import commands
from cablestore.chat.amounts import PAGE_MESSAGES
from cablestore.chat.cabal import Cabal, ChannelEntry, Member
from cablestore.chat.command_runner import CommandRunner
from cablestore.chat.line_list import Line, LineList
from cablestore.chat.lines import ChannelPlace, channel_line, counted, heading, listed, member_line, next_unread
from cablestore.chat.look import DARK, LIGHT
from cablestore.chat.message_list import MessageList
from cablestore.chat.message_pages import MessagePages
from cablestore.chat.safe_text import clean, fit
from cablestore.chat.screens import FoundScreen, HelpScreen, InvitationScreen, QuestionScreen
from cablestore.chat.timeline import short_name
from cablestore.chat.typing_box import TypingBox
from cablestore.errors import CableStoreError, OwnerGoneError
from cablestore.store.display import Message

_LOOK_S: Final = 0.1
"""How often the client looks for news. A flood of posts is drawn this often and no more."""
_REST: Final = 3
"""After a look that took long, the next one waits at least this many times as long: most of a second is for keys."""
_NEWS: Final = "news"
"""The group of the worker that looks."""
_LISTS_EVERY: Final = 5
"""The lists of channels and members are read again after this many looks at most."""
FIRST_CHANNEL: Final = "default"
_QUOTED: Final = 300


class ChatApp(App[None]):
    """A client on one or several cabals. It closes no cabal."""

    CSS_PATH = "chat.tcss"
    TITLE = "cablestore"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - Textual declares it so
        (0, "-tiny"),
        (60, "-narrow"),
        (100, "-wide"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", priority=True),
        Binding("f2", "toggle_members", "Members", priority=True),
        Binding("f3", "toggle_look", "Light or dark", priority=True),
        Binding("f4", "invitation", "Invitation", priority=True),
        Binding("ctrl+n,alt+down", "next_channel(1)", "Next channel", priority=True),
        Binding("ctrl+p,alt+up", "next_channel(-1)", "Previous channel", priority=True),
        Binding("f5", "next_unread", "Next unread channel", priority=True),
        Binding("pageup", "scroll_pages(-1)", "Scroll up", priority=True),
        Binding("pagedown", "scroll_pages(1)", "Scroll down", priority=True),
        Binding("ctrl+home", "oldest", "Oldest", priority=True),
        Binding("ctrl+end", "newest", "Newest", priority=True),
        Binding("escape", "choose_message", "Choose a message"),
        Binding("d", "delete_chosen", "Delete"),
        Binding("h", "hide_chosen", "Hide"),
        Binding("ctrl+q", "quit", "End", priority=True),
    ]

    def __init__(
        self, open_cabals: Sequence[Cabal], *, channel: str = "", zone: tzinfo | None = None, light: bool = False
    ) -> None:
        """Show these cabals, first of all a channel of the first one. Times are those of `zone`."""
        super().__init__()
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = LIGHT.name if light else DARK.name
        self._open_cabals = open_cabals
        self._place = ChannelPlace(0, channel)
        self._sends_to = self._place
        """Where the next typed text goes: the channel that is shown, or that of a /join that is not done yet."""
        self._zone = zone
        self._channels: list[list[ChannelEntry]] = [[] for _ in open_cabals]
        self._members: list[Member] = []
        self._own_name = ""
        self._looks = 0
        self._lists_are_old = True
        self._is_reading = False
        """Whether news are being taken."""
        self._is_ready = False
        self._runner = CommandRunner(self)
        self._pages = MessagePages(self)
        self._drafts: dict[ChannelPlace, str] = {}
        """What was typed and is not written yet."""
        self._marked: dict[ChannelPlace, str] = {}
        """Up to where channels were marked as read."""
        self._in_order = asyncio.Lock()
        """What is asked for is done in that order, however fast it is asked for."""

    # --- parts ---------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Put up the panes."""
        yield Static(id="heading", markup=False)
        with Horizontal(id="middle"):
            yield LineList("channels")
            yield MessageList(self._zone, "messages")
            yield LineList("members")
        yield Static(id="notice", markup=False)
        yield TypingBox(self._completions, self._send, "typing")
        with Horizontal(id="bottom"):
            yield Static(id="state", markup=False)
            yield Static("F1 help", id="hints", markup=False)

    @property
    def open_cabal(self) -> Cabal:
        """The cabal that is shown."""
        return self._open_cabals[self._place.cabal]

    @property
    def channel(self) -> str:
        """The channel that is shown."""
        return self._place.channel

    def cabal_of(self, place: ChannelPlace) -> Cabal:
        """Return the cabal of a channel."""
        return self._open_cabals[place.cabal]

    @property
    def messages(self) -> MessageList:
        """The view of messages."""
        return self.query_one(MessageList)

    @property
    def typing(self) -> TypingBox:
        """The typing box."""
        return self.query_one(TypingBox)

    @property
    def is_busy(self) -> bool:
        """Whether something that was asked for is not on the screen yet."""
        is_asking = len(self.screen_stack) > 1
        works = not is_asking and any(worker.is_running and worker.group != _NEWS for worker in self.workers)
        happens = any(open_cabal.is_busy for open_cabal in self._open_cabals)
        reads = self._is_reading or self._lists_are_old or self.messages.is_loading
        return not self._is_ready or happens or reads or works

    async def on_mount(self) -> None:
        """Show the first channel, and look for news from now on."""
        self.typing.focus()
        await self._read_lists()
        if not self.channel:
            joined = [entry.name for entry in self._channels[0] if entry.is_joined]
            known = joined or [entry.name for entry in self._channels[0]] or [FIRST_CHANNEL]
            self._place = ChannelPlace(0, FIRST_CHANNEL if FIRST_CHANNEL in known else known[0])
        await self._try(self._open(self._place))
        self._follow_news()
        self._is_ready = True

    # --- what is shown -------------------------------------------------------------------------

    async def _open(self, place: ChannelPlace, message: Message | None = None) -> None:
        """Show a channel from its end, or around a message. If the store cannot be reached, what is shown remains."""
        if self._is_ready:
            self._mark_read()
        await self._exchange_drafts(place)
        self._place = self._sends_to = place
        self.messages.note = ""
        self.messages.own_key = self.open_cabal.own_key
        self.messages.clear()
        await self._try(self._pages.read_newest() if message is None else self._pages.read_around(message))
        await self._try(self._read_lists())

    async def _exchange_drafts(self, place: ChannelPlace) -> None:
        """Keep what is typed for the channel that is left, and show what was typed for the other one."""
        draft = self._drafts.get(place)
        if draft is None:
            draft = await self._open_cabals[place.cabal].draft(place.channel)
        self._take_draft()
        self._do(self._keep_drafts)
        if place != self._place or not self._is_ready:
            self.typing.show(draft)

    def _take_draft(self) -> None:
        draft = self.typing.take_draft() if self._is_ready else None
        if draft is not None:
            self._drafts[self._place] = draft

    async def _keep_drafts(self) -> None:
        for place, draft in list(self._drafts.items()):
            await self._open_cabals[place.cabal].set_draft(place.channel, draft)
            if self._drafts.get(place) is draft:
                del self._drafts[place]

    async def _read_lists(self) -> None:
        """Read the lists again. Those of a store that cannot be reached remain until it tells that it is back."""
        place = self._place
        open_cabal = self._open_cabals[place.cabal]
        for number, each in enumerate(self._open_cabals):
            with suppress(OwnerGoneError):
                self._channels[number] = await each.channels()
        with suppress(OwnerGoneError):
            members = await open_cabal.members(place.channel) if place.channel else []
            own_name = await open_cabal.own_name()
            mentions = await open_cabal.mentions(place.channel) if place.channel else frozenset()
            if place != self._place:  # another channel is shown by now, and its lists are being read
                return
            self._members, self._own_name, self.messages.mentions = members, own_name, mentions
        self._lists_are_old = False
        self._show_lists()

    def _show_lists(self) -> None:
        lines, place = list[Line](), self._place
        here = {entry.name: entry for entry in self._channels[place.cabal]}
        shown = here.get(place.channel, ChannelEntry(place.channel))
        for number, open_cabal in enumerate(self._open_cabals):
            if len(self._open_cabals) > 1:
                lines.append(Line(None, clean(open_cabal.label), look="title"))
            lines += [
                channel_line(number, replace(entry, unread=0, mentions=0) if self._is_read(number, entry) else entry)
                for entry in self._channels[number]
            ]
            if place.cabal == number and place.channel not in here:
                lines.append(channel_line(number, shown))
        self.query_one("#channels", LineList).show(lines, place)
        self.query_one("#members", LineList).show(
            [Line(None, counted(len(self._members), "member"), look="title"), *map(member_line, self._members)]
        )
        self.query_one("#heading", Static).update(Content.assemble(*heading(shown)))
        self._show_state()

    def _is_read(self, cabal: int, entry: ChannelEntry) -> bool:
        """Tell whether the end of a channel is on the screen."""
        return ChannelPlace(cabal, entry.name) == self._place and self.messages.is_at_end and bool(self.app_focus)

    def _show_state(self) -> None:
        name = clean(self._own_name) or short_name(self.open_cabal.own_key.hex())
        sign = "●" if self.open_cabal.is_connected else "○"
        parts = [f"{sign} {self.open_cabal.connection}", name, *self.open_cabal.listening]
        self.query_one("#state", Static).update("   ".join(parts))

    def tell(self, text: str) -> None:
        """Show a line over the typing box until the next one is sent; nothing with ""."""
        notice = self.query_one("#notice", Static)
        notice.update(clean(text))
        notice.set_class(bool(text), "-shown")

    # --- news ----------------------------------------------------------------------------------

    @work(group=_NEWS)
    async def _follow_news(self) -> None:
        """Take the news of all cabals. Keys are handled meanwhile, also while the store is busy for a moment."""
        took_s = 0.0
        while True:
            await asyncio.sleep(max(_LOOK_S, _REST * took_s))
            self._looks += 1
            self._is_reading = True
            began = time.monotonic()
            with self._until_the_end():
                try:
                    await self._take_news()
                except OwnerGoneError:
                    self._show_state()  # which says so
                except CableStoreError as error:
                    self.tell(str(error))
            self._is_reading = False
            took_s = time.monotonic() - began

    async def _take_news(self) -> None:
        for number, open_cabal in enumerate(self._open_cabals):
            news = open_cabal.take_news()
            if news.is_empty:
                continue
            self._lists_are_old = True
            if number == self._place.cabal:
                await self._pages.take(news)
        if self._looks % _LISTS_EVERY == 0:
            self._mark_read()
            if self._lists_are_old:
                await self._read_lists()
            self._show_state()

    def _mark_read(self) -> None:
        """Mark as read what is at the end of the view, while the terminal has the focus."""
        held, place = self.messages.timeline.messages, self._place
        if not (held and self.messages.is_at_end and self.app_focus) or self._marked.get(place) == held[-1].cursor:
            return
        self._marked[place] = held[-1].cursor
        self._do(partial(self._write_mark, place, held[-1].cursor))

    async def _write_mark(self, place: ChannelPlace, upto: str) -> None:
        try:
            await self._open_cabals[place.cabal].mark_read(place.channel, upto)
        except OwnerGoneError:  # it is marked when the store is back
            self._marked.pop(place, None)

    async def on_message_list_page_wanted(self, event: MessageList.PageWanted) -> None:
        """Read a page next to what is held."""
        self._read_page(older=event.older)

    @work
    async def _read_page(self, *, older: bool) -> None:
        with self._until_the_end():
            await self._try(self._pages.read_next(older=older))

    async def on_message_list_end_wanted(self, event: MessageList.EndWanted) -> None:
        """Show an end of the channel that is not held."""
        self.messages.clear()
        await self._try(self._pages.read_oldest() if event.oldest else self._pages.read_newest())

    # --- what commands ask for -----------------------------------------------------------------

    async def show_channel(self, place: ChannelPlace) -> None:
        """Show a channel."""
        await self._open(place)

    def show_end(self, place: ChannelPlace) -> None:
        """Show the newest messages of a channel, if it is the one that is shown."""
        if place == self._place:
            self.messages.action_newest()

    def show_help(self) -> None:
        """Show keys and commands."""
        self.push_screen(HelpScreen())

    async def show_invitation(self, place: ChannelPlace) -> None:
        """Show the invitation to a cabal."""
        self.push_screen(InvitationScreen(await self.cabal_of(place).invitation()))

    async def show_found(self, place: ChannelPlace, text: str) -> None:
        """Search a cabal, and show what was found. The message that is chosen there is shown in its channel."""
        page = await self.cabal_of(place).search(text)

        async def show(message: Message | None) -> None:
            if message is not None:
                await self._try(self._open(place._replace(channel=message.channel), message))

        self.push_screen(FoundScreen(text, page, self._zone), show)

    async def ask_to_delete_last(self, place: ChannelPlace) -> None:
        """Ask whether the last own message shall be deleted. Raises CableStoreError if there are many after it."""
        open_cabal = self.cabal_of(place)
        page = await open_cabal.page(place.channel, PAGE_MESSAGES)
        own = next((message for message in page.messages if message.author == open_cabal.own_key), None)
        if own is None:
            raise CableStoreError("none of your messages is near: scroll to it, press Escape, choose it, press D")
        self._delete(open_cabal, own)

    async def end(self) -> None:
        """Keep what is typed, and end."""
        self._take_draft()
        await self._keep_drafts()
        self.exit()

    # --- keys ----------------------------------------------------------------------------------

    def action_help(self) -> None:
        """Show keys and commands."""
        self.show_help()

    async def action_quit(self) -> None:
        """End, when all that was typed is done. Keys that follow are for nobody."""
        async with self._in_order:
            await self._try(self.end())

    async def action_invitation(self) -> None:
        """Show the invitation to the cabal."""
        await self._try(self.show_invitation(self._place))

    def action_toggle_look(self) -> None:
        """Change between light and dark."""
        self.theme = DARK.name if self.theme == LIGHT.name else LIGHT.name

    def action_toggle_members(self) -> None:
        """Show the members, or hide them."""
        is_shown = bool(self.query_one("#members").display)
        self.screen.set_class(not is_shown, "members-shown")
        self.screen.set_class(is_shown, "members-away")

    def action_scroll_pages(self, by: int) -> None:
        """Move the view of messages by screens."""
        self.messages.action_scroll_pages(by)

    def action_oldest(self) -> None:
        """Go to the beginning of the channel."""
        self.messages.action_oldest()

    def action_newest(self) -> None:
        """Go to the end of the channel."""
        self.messages.action_newest()

    async def action_next_channel(self, by: int) -> None:
        """Show the next channel of the list."""
        places = [place for place, _ in listed(self._channels)]
        if places:
            at = places.index(self._place) if self._place in places else -1
            await self._go(places[(at + by) % len(places)])

    async def action_next_unread(self) -> None:
        """Show the next channel of the list that has unread messages and is not muted."""
        if (place := next_unread(self._channels, self._place)) is None:
            self.tell("No other channel has unread messages")
        else:
            await self._go(place)

    async def on_line_list_chosen(self, event: LineList.Chosen) -> None:
        """Show a channel that was clicked, or begin a message to a member."""
        if isinstance(event.key, ChannelPlace):
            await self._go(event.key)
            self.typing.focus()
        elif isinstance(event.key, str):
            self.typing.insert(f"@{event.key} ")
            self.typing.focus()

    async def _go(self, place: ChannelPlace) -> None:
        """Show a channel that a key or the mouse asks for, after the typing box has the keys that came before."""
        has_keys = asyncio.Event()
        if self.typing.call_later(has_keys.set):
            await has_keys.wait()
        await self._try(self._open(place))

    def action_choose_message(self) -> None:
        """Give the focus to the messages, or back to the typing box."""
        if self.messages.has_focus:
            self.typing.focus()
        else:
            self.messages.focus()
            self.messages.action_choose(0)

    async def action_delete_chosen(self) -> None:
        """Delete the chosen message, after a question."""
        if self.messages.chosen is not None:
            self._delete(self.open_cabal, self.messages.chosen)

    def action_hide_chosen(self) -> None:
        """Hide the chosen message."""
        chosen = self.messages.chosen
        if chosen is not None:
            self._do(partial(self.open_cabal.moderate, "hide", posts=[chosen.hash]))

    @work
    async def _delete(self, open_cabal: Cabal, message: Message) -> None:
        if message.author != open_cabal.own_key:
            self.tell("This message is not yours: H hides it")
            return
        quoted = fit(clean(message.text, lines=True), _QUOTED)
        if await self.push_screen_wait(QuestionScreen("Delete this message, here and on peers?", quoted)):
            self._do(partial(open_cabal.delete, message.hash))

    # --- typed texts ---------------------------------------------------------------------------

    def _completions(self, text: str) -> list[str]:
        channels = [entry.name for entry in self._channels[self._place.cabal]]
        names = [short_name(member.name) for member in self._members if not member.is_self]
        return commands.completions(text, channels, names)

    def _send(self, text: str) -> None:
        """Do what a typed text says, after what earlier ones say."""
        self.tell("")
        self._obey(text, self._sends_to, self._place)
        if joined := commands.joined_channel(text):
            self._sends_to = self._sends_to._replace(channel=joined)

    @work
    async def _obey(self, text: str, place: ChannelPlace, typed_in: ChannelPlace) -> None:
        """Do what a text says that was typed in the box of one channel, for that one or for one that is joined."""
        with self._until_the_end():
            async with self._in_order:
                if await self._try(self._runner.run(text, place)):
                    return
                if self._sends_to == place._replace(channel=commands.joined_channel(text)):
                    self._sends_to = self._place
                if self._place in (place, typed_in):
                    self.typing.restore(text)
                elif not self._drafts.get(typed_in):
                    self._drafts[typed_in] = text
                    self._do(self._keep_drafts)

    @work
    async def _do(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work after what was asked for earlier, while keys are handled."""
        with self._until_the_end():
            async with self._in_order:
                await self._try(work())

    @contextmanager
    def _until_the_end(self) -> Iterator[None]:
        """Let work that is under way when the client ends meet no widgets any more."""
        try:
            yield
        except NoMatches:
            if self.is_running:
                raise

    async def _try(self, work: Awaitable[None]) -> bool:
        """Wait for work. If it fails, say why and return False."""
        try:
            await work
        except (CableStoreError, OSError) as error:
            self.tell(str(error))
            return False
        return True
