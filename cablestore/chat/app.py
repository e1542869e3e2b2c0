"""The client: panes around a typing box, and the actions of keys and typed commands."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import tzinfo
from functools import partial
from typing import ClassVar, Final, TypeVar

from rich.text import Text
from textual import events, work
from textual.actions import SkipAction
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Static

from cablestore.aio.threads import on_loop
from cablestore.chat import commands
from cablestore.chat.alerts import Alerts
from cablestore.chat.cabal import Cabal
from cablestore.chat.changes import CHANGES_WINDOW_S, FLOOD_WINDOW_S
from cablestore.chat.display_limits import MAX_TYPED
from cablestore.chat.drafts import Drafts
from cablestore.chat.entries import ChannelEntry, Member
from cablestore.chat.first_screen import first_channel, note_of
from cablestore.chat.keys import KEY_ACTIONS, Keys
from cablestore.chat.line_list import LineList
from cablestore.chat.lines import CabalChannel, FoldLine
from cablestore.chat.message_actions import MessageActions
from cablestore.chat.message_list import MessageList
from cablestore.chat.message_pages import MessagePages
from cablestore.chat.panes import Panes
from cablestore.chat.reading import Reading
from cablestore.chat.safe_text import clean
from cablestore.chat.settings import THEME_NAMES, ChatSettings
from cablestore.chat.terminal import Terminal
from cablestore.chat.themes import theme
from cablestore.chat.timeline import short_name
from cablestore.chat.typing_box import TypingBox, types
from cablestore.chat.windows import Windows
from cablestore.errors import CableStoreError, NotFoundError, OwnerGoneError
from cablestore.store.display import Message

_REST: Final = 3
"""Ratio of the pause after an update to the duration of the update, so that most of the time is left for keys."""
_CHANGES: Final = "changes"
"""Group of the workers that follow changes."""
_LISTS_EVERY_S: Final = 0.5
"""Interval for reading the lists of channels and members."""

T = TypeVar("T")


class ChatApp(App[None]):
    """Client for one or several cabals. It does not close the cabals."""

    CSS_PATH = "chat.tcss"
    TITLE = "cablestore"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (100, "-wide")]  # noqa: RUF012 - declared so by Textual
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(each.keys), each.method, each.meaning, id=name, priority=True)
        for name, each in KEY_ACTIONS.items()
    ]

    def __init__(
        self,
        open_cabals: Sequence[Cabal],
        settings: ChatSettings = ChatSettings(),  # noqa: B008 - frozen
        *,
        channel: str = "",
        zone: tzinfo | None = None,
    ) -> None:
        """Show these cabals, beginning with `channel` of the first cabal. Times are displayed in `zone`."""
        super().__init__(driver_class=Terminal)
        self._themes = {name: theme(name, self.console.color_system) for name in THEME_NAMES}
        for each in self._themes.values():
            self.register_theme(each)
        self.theme = self._themes[settings.theme].name
        self._keys = Keys(settings.keys)
        self._open_cabals = open_cabals
        self._place = CabalChannel(0, channel)
        self._sends_to = self._place
        """Channel of the next typed text: the shown channel, or the channel of a pending /join."""
        self._zone = zone
        self._channels: list[list[ChannelEntry]] = [[] for _ in open_cabals]
        self._members: list[Member] = []
        self._panes = Panes(self, [each.label for each in open_cabals], self._keys)
        self._own_name = ""
        self._changes_came = asyncio.Event()
        self._state_came = asyncio.Event()
        self._lists_due_s = 0.0
        self._lists_are_old = True
        self._is_clock_wrong = False
        self._is_reading = False
        """True while changes are being read."""
        self._is_ready = False
        self._pages = MessagePages(self)
        self._reading = Reading(self)
        self._alerts = Alerts(self, settings, os.environ)
        self.windows = Windows(self, open_cabals, self._keys, zone)
        self._actions = MessageActions(self)
        self._drafts = Drafts(self, open_cabals)
        self._in_order = asyncio.Lock()
        """Lock that is held while a request runs, so that requests run in the order of input."""

    # --- parts ---------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Create the panes."""
        messages = MessageList(self._zone, self._keys.shown("{newest}"), "messages")
        yield Static(id="heading", markup=False)
        with Horizontal(id="middle"):
            yield LineList("channels")
            yield messages
            yield LineList("members")
        with VerticalScroll(id="notice", can_focus=False):
            yield Static(markup=False)
        yield TypingBox(self._completions, self._send, messages, "typing")
        with Horizontal(id="bottom"):
            yield Static(id="state", markup=False)
            yield Static(id="hints", markup=False)

    @property
    def open_cabal(self) -> Cabal:
        """Cabal that is shown."""
        return self._open_cabals[self._place.cabal]

    @property
    def place(self) -> CabalChannel:
        """Channel that is shown, and its cabal."""
        return self._place

    @property
    def channel(self) -> str:
        """Name of the channel that is shown."""
        return self._place.channel

    def cabal_of(self, place: CabalChannel) -> Cabal:
        """Return the cabal of a channel."""
        return self._open_cabals[place.cabal]

    @property
    def messages(self) -> MessageList:
        """View of the messages."""
        return self.query_one(MessageList)

    @property
    def typing(self) -> TypingBox:
        """Typing box."""
        return self.query_one(TypingBox)

    @property
    def is_watched(self) -> bool:
        """True if the user sees the messages: the terminal has the focus, and no window covers them."""
        return bool(self.app_focus) and len(self.screen_stack) == 1

    @property
    def is_busy(self) -> bool:
        """True while the result of a request, or a change, is not on the screen yet."""
        is_asking = len(self.screen_stack) > 1
        works = not is_asking and any(worker.is_running and worker.group != _CHANGES for worker in self.workers)
        happens = any(open_cabal.is_busy for open_cabal in self._open_cabals)
        reads = self._is_reading or self._lists_are_old or self.messages.is_loading
        return not self._is_ready or happens or reads or works

    async def on_mount(self) -> None:
        """Show the first channel, and start to follow changes."""
        self.set_keymap({name: ",".join(keys) for name, keys in self._keys.of.items()})
        self.typing.focus()
        self.watch(self.messages, "chosen", self._show_state, init=False)  # the last line lists keys for this message
        await self._read_channels()
        try:
            self._place = CabalChannel(0, first_channel(self.channel, self._channels[0]))
        except NotFoundError as error:
            self.show_notice(str(error))
        await self._try(self._open(self._place))
        await self._try(self._alerts.check(self._channels))
        loop = asyncio.get_running_loop()
        for each in self._open_cabals:
            each.notify(partial(on_loop, loop, self._changes_came.set), partial(on_loop, loop, self._state_came.set))
        self._state_came.set()
        self._follow_state()
        self._follow_changes()
        self._is_ready = True

    # --- what is shown -------------------------------------------------------------------------

    async def _open(self, place: CabalChannel, message: Message | None = None) -> None:
        """Show the end of a channel, or a message in it. Raises CableStoreError if the draft cannot be read.

        In that case, the screen does not change.
        """
        if self._is_ready:
            await self._try(self._reading.mark())
        draft = await self._drafts.read(place)
        if place != self._place or not self._is_ready:
            self._drafts.take()
            self.typing.show(draft)
        self._place = self._sends_to = place
        self.messages.own_key = self.open_cabal.own_key
        self.messages.clear()
        await self._try(self._reading.begin())
        await self._try(self._pages.read_newest() if message is None else self._pages.read_around(message))
        self._reading.show_line()
        await self._try(self._read_lists())

    def on_text_area_changed(self) -> None:
        """Schedule writing the draft, so that a crash does not lose it."""
        if self._is_ready:
            self._drafts.write_soon()

    async def _read_channels(self) -> None:
        """Read the channels of all cabals. The lists of unreachable stores remain unchanged."""
        for number, each in enumerate(self._open_cabals):
            with suppress(OwnerGoneError):
                self._channels[number] = await each.channels()

    async def _read_lists(self) -> None:
        """Read the lists of channels and members again, and the details around the messages."""
        place = self._place
        open_cabal = self._open_cabals[place.cabal]
        await self._read_channels()
        with suppress(OwnerGoneError):
            authors = {message.author for message in self.messages.timeline.messages}
            details = await open_cabal.details(place.channel, list(authors))
            if place != self._place:  # another channel was opened, and its lists are being read
                return
            self._members, self._own_name = details.members, details.own_name
            self.messages.show_names(details.mentions, details.same_named)
            self._reading.refresh(details.read_state)
            self._warn_of_clock(details.clock_warning)
        self._lists_are_old = False
        self._show_lists()

    def _warn_of_clock(self, warning: str) -> None:
        """Show a warning about the clock, once until the clock is right again."""
        if warning and not self._is_clock_wrong:
            self.show_notice(warning[:1].upper() + warning[1:])
        self._is_clock_wrong = bool(warning)

    def _show_lists(self) -> None:
        shown = self._reading.shown_entry(self._shown_entry)
        self._panes.show_lists(self._channels, self._members, self._place, shown)
        self._show_state()

    @property
    def _shown_entry(self) -> ChannelEntry:
        """Entry of the shown channel in its list. A channel without posts is not in the list."""
        here = self._channels[self._place.cabal]
        return next((entry for entry in here if entry.name == self.channel), ChannelEntry(self.channel))

    def _show_state(self) -> None:
        self._panes.show_state(self.open_cabal, self._own_name, is_chosen=self.messages.chosen is not None)
        known = self._channels[self._place.cabal]
        self.messages.show_note(note_of(self.open_cabal, self._own_name, self.channel, known, self._keys))

    def show_notice(self, text: str, *, is_error: bool = True) -> None:
        """Show lines above the typing box until the next text is sent. "" clears them."""
        notice = self.query_one("#notice")
        notice.query_one(Static).update(clean(text, lines=True))
        notice.set_class(bool(text), "-shown").set_class(is_error, "-error").scroll_home(animate=False)

    # --- changes ----------------------------------------------------------------------------------

    @work(group=_CHANGES)
    async def _follow_changes(self) -> None:
        """Follow the changes of all cabals. Keys are handled at the same time, even if the store is busy."""
        self._lists_due_s = time.monotonic() + _LISTS_EVERY_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lists_due_s - time.monotonic()):
                    await self._changes_came.wait()
            self._changes_came.clear()
            self._is_reading = True
            began_s = time.monotonic()
            with self._until_the_end():
                try:
                    await self._apply_changes()
                except OwnerGoneError:
                    pass  # shown in the state of the connection
                except CableStoreError as error:
                    self.show_notice(str(error))
            self._is_reading = False
            await asyncio.sleep(max(CHANGES_WINDOW_S, _REST * (time.monotonic() - began_s)))
            if self._changes_came.is_set():  # many changes: leave more time for keys
                await asyncio.sleep(FLOOD_WINDOW_S)

    async def _apply_changes(self) -> None:
        for number, open_cabal in enumerate(self._open_cabals):
            changes = open_cabal.take_changes()
            if changes.is_empty:
                continue
            self._lists_are_old = True
            if number == self._place.cabal:
                await self._pages.apply(changes)
        if time.monotonic() >= self._lists_due_s:
            self._lists_due_s = time.monotonic() + _LISTS_EVERY_S
            await self._reading.mark()
            if self._lists_are_old:
                await self._read_lists()
                await self._alerts.check(self._channels)

    @work(group=_CHANGES)
    async def _follow_state(self) -> None:
        """Update the state of the connection after each change."""
        while True:
            await self._state_came.wait()
            self._state_came.clear()
            with self._until_the_end():
                self._show_state()
            await asyncio.sleep(CHANGES_WINDOW_S)

    def on_message_list_scrolled(self) -> None:
        """Move the line of unread messages, unless the user may be reading at it."""
        self._reading.scrolled()

    async def on_message_list_page_requested(self, event: MessageList.PageRequested) -> None:
        """Read the page before or after the loaded messages."""
        self._read_page(older=event.older)

    @work
    async def _read_page(self, *, older: bool) -> None:
        with self._until_the_end():
            await self._try(self._pages.read_next(older=older))

    async def on_message_list_end_requested(self, event: MessageList.EndRequested) -> None:
        """Load and show the beginning or the end of the channel."""
        self.messages.clear()
        await self._try(self._pages.read_oldest() if event.oldest else self._pages.read_newest())

    # --- requests of commands ------------------------------------------------------------------

    async def show_channel(self, place: CabalChannel) -> None:
        """Show a channel."""
        await self._open(place)

    def show_end(self, place: CabalChannel) -> None:
        """Show the newest messages of a channel, if it is shown."""
        if place == self._place:
            self.messages.action_newest()

    async def show_message(self, place: CabalChannel, message: Message) -> None:
        """Show a message in its channel, and choose it."""
        await self._try(self._open(place, message))

    def send_sequence(self, sequence: str) -> None:
        """Send an escape sequence to the terminal."""
        if self._driver is not None:
            self._driver.write(sequence)

    async def confirm_delete_last(self, place: CabalChannel) -> None:
        """Request confirmation to delete the user's last message.

        Raises CableStoreError if the message is not near the end of the channel.
        """
        await self._actions.delete_last(place)

    async def answer_of(self, screen: Screen[T]) -> T | None:
        """Show a window and return its result, or None if the user cancels."""
        return await self.push_screen_wait(screen)

    async def end(self) -> None:
        """Save drafts and read marks, and exit. Drafts that a store rejects are printed."""
        report = await self._drafts.write_last()
        await self._try(self._reading.mark())
        self.exit(message=Text(report) if report else None)

    # --- keys ----------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        """Forward typed and pasted text to the typing box, even if a window covers it.

        Without a window, forward all keys to the box.
        """
        self._alerts.note(event)
        is_input = isinstance(event, events.Key | events.Paste) and not event.is_forwarded and self._is_ready
        if is_input and not self.screen.is_modal:
            self.app_focus = True  # not all terminals report their focus
            self.screen.set_focus(self.typing)
        elif is_input and types(event) and not (isinstance(event, events.Key) and event.key in self._keys.all):
            self.typing.post_message(event)
            return
        await super().on_event(event)

    async def on_terminal_closed(self) -> None:
        """Exit, because the terminal is closed."""
        await self.action_quit()

    async def on_text_too_long(self) -> None:
        """Report a rejected text after the earlier keys were handled, because sending a text clears the notice."""
        await self._earlier_keys()
        self.show_notice(f"The text is too long: the maximum is {MAX_TYPED:,} characters. Paste a part of it")

    async def action_copy(self) -> None:
        """Copy the selected text, or else the chosen message. If a window is open, the window handles the key."""
        self._skip_in_windows()
        await self._earlier_keys()
        marked = self.typing.selected_text or self.screen.get_selected_text()
        self._actions.copy(marked, self.messages.chosen)

    def on_message_list_menu_requested(self, event: MessageList.MenuRequested) -> None:
        """Show the menu of actions on the chosen message."""
        self.run_dialog(partial(self._actions.choose, self.open_cabal, event.message))

    def action_help(self) -> None:
        """Show keys and commands. If a window is open, the window handles the key."""
        self._skip_in_windows()
        self.windows.show_help()

    def _skip_in_windows(self) -> None:
        if self.screen.is_modal:
            raise SkipAction

    async def action_quit(self) -> None:
        """Exit after all earlier input was handled."""
        await self._earlier_keys()
        async with self._in_order:
            await self.end()

    async def action_invitation(self) -> None:
        """Show the invitation to the cabal."""
        await self._try(self.windows.show_invitation(self._place))

    async def action_mentions(self) -> None:
        """Show the messages that mention the user."""
        await self._try(self.windows.show_mentions())

    def action_toggle_look(self) -> None:
        """Toggle between the light and the dark theme."""
        self.theme = next(each.name for each in self._themes.values() if each.name != self.theme)

    def action_toggle_members(self) -> None:
        """Show or hide the members."""
        self._panes.toggle_members()

    def action_scroll_pages(self, by: int) -> None:
        """Scroll the messages by `by` screens, down for a positive number."""
        self.messages.action_scroll_pages(by)

    def action_oldest(self) -> None:
        """Scroll to the beginning of the channel."""
        self.messages.action_oldest()

    def action_newest(self) -> None:
        """Scroll to the end of the channel."""
        self.messages.action_newest()

    async def action_next_channel(self, by: int) -> None:
        """Show the channel that is `by` lines further in the list."""
        if place := self._panes.folds(self._place).next(self._channels, by):
            await self._go(place)

    def action_fold(self) -> None:
        """Show or fold the channels of the current cabal that are not joined."""
        self._panes.fold(self._place.cabal)
        self._show_lists()

    async def action_next_unread(self) -> None:
        """Show the next unread channel that is not muted, or else the unread messages above the view."""
        if (place := self._panes.folds(self._place).next_unread(self._channels)) is not None:
            await self._go(place)
        elif (first := self._reading.first_left) is not None:
            await self._try(self._pages.read_unread(first))
        else:
            self.show_notice("No other channel has unread messages")

    async def on_line_list_chosen(self, event: LineList.Chosen) -> None:
        """Show a clicked channel, toggle a clicked fold line, or start a message to a clicked member."""
        if isinstance(event.key, FoldLine):
            self._panes.fold(event.key.folded_cabal)
            self._show_lists()
        elif isinstance(event.key, CabalChannel):
            await self._go(event.key)
            self.typing.focus()
        elif isinstance(event.key, str):
            self.typing.insert(f"@{event.key} ")
            self.typing.focus()

    async def _go(self, place: CabalChannel) -> None:
        """Show a channel that was chosen by a key or the mouse."""
        await self._earlier_keys()
        await self._try(self._open(place))

    async def _earlier_keys(self) -> None:
        """Wait until the typing box has received the earlier keys."""
        has_keys = asyncio.Event()
        if self.typing.call_later(has_keys.set):
            await has_keys.wait()

    # --- typed text -----------------------------------------------------------------------------

    def _completions(self, text: str) -> list[str]:
        channels = [entry.name for entry in self._channels[self._place.cabal]]
        names = [short_name(member.name) for member in self._members if not member.is_self]
        return commands.completions(text, channels, names)

    def _send(self, text: str) -> None:
        """Queue a typed message or command after earlier requests."""
        self.show_notice("")
        self._obey(text, self._sends_to, self._place)
        self._sends_to = self._joined(text, self._sends_to)
        self._drafts.take()  # the box is empty now; the empty draft is written after the message

    @work
    async def _obey(self, text: str, place: CabalChannel, typed_in: CabalChannel) -> None:
        """Post a typed message, or run a command, in the channel `place`.

        If a message cannot be sent, it returns to the box, or becomes the draft of the channel `typed_in`.
        """
        with self._until_the_end():
            async with self._in_order:
                if await self._try(self._run(text, place)):
                    return
                if self._sends_to == self._joined(text, place):
                    self._sends_to = self._place
                if not commands.is_a_message(text):
                    return  # the up arrow recalls it
                if self._place in (place, typed_in):
                    self.typing.restore(text)
                else:
                    self._drafts.keep(typed_in, text)

    async def _run(self, text: str, place: CabalChannel) -> None:
        if report := await commands.run(text, self, place):
            self.show_notice(report, is_error=False)

    def _joined(self, text: str, place: CabalChannel) -> CabalChannel:
        """Return the last channel that a typed text joins, or else `place`."""
        names = [entry.name for entry in self._channels[place.cabal]]
        return place._replace(channel=commands.joined_channel(text, names) or place.channel)

    @work
    async def run_dialog(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run work that waits for the user. Other requests do not wait for it."""
        with self._until_the_end():
            await self._try(work())

    @work
    async def do(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run work after earlier requests, while keys are handled."""
        with self._until_the_end():
            async with self._in_order:
                await self._try(work())

    @contextmanager
    def _until_the_end(self) -> Iterator[None]:
        """Ignore errors of the body about missing widgets if the client has exited meanwhile."""
        try:
            yield
        except NoMatches:
            if self.is_running:
                raise

    async def _try(self, work: Awaitable[object]) -> bool:
        """Await `work`, and return True. If it raises an error of the store or system, show the error and return False."""
        try:
            await work
        except (CableStoreError, OSError) as error:
            self.show_notice(str(error))
            return False
        return True
