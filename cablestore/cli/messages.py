"""Messages of a channel as `log` prints them: by day on a terminal, one per line in a file, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from cablestore.cli.output import Output, colour_of, local_time, safe
from cablestore.store.display import Message

_NAME_CHARACTERS: Final = 20
_HASH_DIGITS: Final = 8


class MessagePrinter:
    """Printer of messages in order. It keeps the day and the width of names between calls."""

    def __init__(self, out: Output) -> None:
        self.out: Final = out
        self._day = ""
        self._latest_ms = -1
        self._name_width = 0
        self._names: Mapping[bytes, str] = {}

    def show(self, messages: Sequence[Message], names: Mapping[bytes, str] | None = None) -> None:
        """Print further messages. `names` contains the names of users who hid messages."""
        self._names = names or {}
        if self.out.as_json or not self.out.console.is_terminal:
            for message in messages:
                self.out.say(self._line(message), **message_fields(message))
            return
        self._name_width = max(self._name_width, *(cell_len(_name(message)) for message in messages), 0)
        for message in messages:
            self._show_day(message.timestamp_ms)
            self._latest_ms = max(self._latest_ms, message.timestamp_ms)
            self.out.console.print(self._row(message), soft_wrap=False)

    def _line(self, message: Message) -> str:
        when, digest = self.out.when(message.timestamp_ms), message.hash.hex()[:_HASH_DIGITS]
        gap = "  " if message.emote is None else " "
        return f"{when}  {_sign(message)}{gap}{safe(self._text(message))}  {digest}"

    def _show_day(self, timestamp_ms: int) -> None:
        """Print a heading with the day of `timestamp_ms`, if it is later than the days of all earlier messages."""
        moment = local_time(timestamp_ms)
        day = "after the year 9999" if moment is None else f"{moment:%A} {moment.day} {moment:%B %Y}"
        if timestamp_ms > self._latest_ms and day != self._day:  # an answer from a slow clock does not begin a day
            self._day = day
            self.out.console.rule(Text(day), align="left", style="dim")

    def _row(self, message: Message) -> Table:
        """Return a row of the message: time, name, text, hash. Further lines of the text are indented."""
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True, style="dim")
        row.add_column(no_wrap=True, justify="right", width=self._name_width)
        row.add_column(ratio=1, overflow="fold")
        row.add_column(no_wrap=True, style="dim")
        moment = local_time(message.timestamp_ms)
        row.add_row(
            Text("--:--" if moment is None else f"{moment:%H:%M}"),
            Text(_sign(message), style=colour_of(message.author)),
            Text("\n".join(map(safe, self._text(message).split("\n"))), style="dim" if message.is_hidden else ""),
            Text(message.hash.hex()[:_HASH_DIGITS]),
        )
        return row

    def _text(self, message: Message) -> str:
        """Return the text, or who hid it and why (moderation.md 4.3)."""
        by = message.hidden_by
        if message.emote is not None:
            return f"{_name(message)} {message.emote}"
        if by is None or message.text:
            return message.text
        name = self._names.get(by.author, by.author.hex())[:_NAME_CHARACTERS]
        return f"[hidden by {name}{': ' if by.reason else ''}{by.reason}]"


def _name(message: Message) -> str:
    return safe(message.name)[:_NAME_CHARACTERS]


def _sign(message: Message) -> str:
    """Return the name of the author, or `*` for an emote, whose text contains the name."""
    return _name(message) if message.emote is None else "*"


def message_fields(message: Message) -> dict[str, Any]:
    """Return the fields of a message for JSON. The fields of a hidden message say who hid it, why and when."""
    fields = {
        "hash": message.hash.hex(),
        "channel": message.channel,
        "author": message.author.hex(),
        "name": message.name,
        "timestamp_ms": message.timestamp_ms,
        "text": message.text,
        "links": [link.hex() for link in message.links],
    }
    by = message.hidden_by
    if by is None:
        return fields
    return fields | {"hidden_by": by.author.hex(), "hidden_reason": by.reason, "hidden_at_ms": by.timestamp_ms}
