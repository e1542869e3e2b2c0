"""Commands that read: log, channels, users, show, stats."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, get_args

import click
from rich.text import Text

from cablestore.cli.channel_argument import channel_argument, complete_channel
from cablestore.cli.messages import MessagePrinter
from cablestore.cli.options import full_hash, reading_options, stored_channel, with_store_to_read
from cablestore.cli.output import Output, safe, size
from cablestore.cli.stores import open_or_connect
from cablestore.cli.values import Moment
from cablestore.errors import StoreLockedError
from cablestore.index.arrival_log import EventKind
from cablestore.moderation import ModerationAct, UserRole, act_of
from cablestore.plurals import counted
from cablestore.protocol.body import TEXT, TYPE_NAMES
from cablestore.store.display import Hidden, Message, User
from cablestore.store.queries import Snapshot
from cablestore.store.results import Event
from cablestore.store.store import CableStore

_POLL_S: Final = 1.0
_READER_POLL_S: Final = 0.5
"""Interval at which `log --follow`, on a store of another process, checks that its output is still read."""
_CHECK_ANYWAY_POLLS: Final = 15
"""Polls after which the store is opened even without a change. A write between closing it and checking its files would
otherwise be missed."""
_BARS: Final = 24
_BAR_WIDTH: Final = 50


@click.command()
@channel_argument
@click.option(
    "-n", "--number", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of messages."
)
@click.option(
    "--after", "after_ms", type=Moment(), help="Show only messages since this time, such as 2024-01-31, today or 12h."
)
@click.option("--before", "before_ms", type=Moment(), help="Show only messages before this time.")
@click.option("--oldest", is_flag=True, help="Show the oldest messages instead of the newest.")
@click.option(
    "--causal", is_flag=True, help="Order the whole time window by links, including links through other channels."
)
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages and show them.")
@click.option(
    "--hidden",
    type=click.Choice(get_args(Hidden)),
    default="mark",
    show_default=True,
    help="Omit hidden messages, mark them with who hid them and why, or show them.",
)
@reading_options
def log(
    path: Path,
    out: Output,
    channel: str,
    number: int,
    after_ms: int | None,
    before_ms: int | None,
    oldest: bool,
    causal: bool,
    follow: bool,
    hidden: Hidden,
    read_only: bool,
) -> None:
    """Show the messages of CHANNEL, the newest last.

    On a terminal, messages are listed by day. In a file or a pipe, each message is one line with its date.

    Example: `cablestore log garden --after today --follow`
    """
    printer = MessagePrinter(out)
    with open_or_connect(path, read_only=read_only) as store:
        channel = store.dialect.channel_id(stored_channel(store, channel))
        with store.snapshot() as state:  # posts that arrive during the output are neither missed nor shown twice
            if causal:
                messages = state.causal_messages(channel, after_ms or 0, before_ms, hidden=hidden)
                messages = messages[:number] if oldest else messages[-number:]
            else:
                messages = _messages(
                    state, channel, number, oldest=oldest, after_ms=after_ms, before_ms=before_ms, hidden=hidden
                )
            after = state.last_sequence
            hiders = {message.hidden_by.author for message in messages if message.hidden_by is not None}
            names = {hider: state.user(hider).name for hider in hiders}
        printer.show(messages, names)
        if not messages:
            out.note(f"no messages in {safe(channel)}")
        if follow:
            after = _show_new(store, printer, channel, after, hidden)
    if follow:
        _follow(path, printer, channel, after, hidden, read_only=read_only)


def _messages(state: Snapshot, channel: str, number: int, *, oldest: bool, **chosen: Any) -> list[Message]:
    """Return messages, oldest first, from several pages: a page may be short because of hidden messages."""
    found, cursor = list[Message](), None
    while len(found) < number:
        page = state.messages(channel, number - len(found), newest_first=not oldest, cursor=cursor, **chosen)
        found += page.messages
        cursor = page.cursor
        if cursor is None:
            break
    return found if oldest else found[::-1]


def _follow(path: Path, printer: MessagePrinter, channel: str, after: int, hidden: Hidden, *, read_only: bool) -> None:
    """Print messages that arrive after event `after`, until the reader of the output closes it.

    The store is opened only after a change, so that other processes can write to the store in between.
    """
    seen = _changed_at(path)
    for poll in count(1):
        time.sleep(_POLL_S)
        if not printer.out.has_reader():
            return
        if _changed_at(path) == seen and poll % _CHECK_ANYWAY_POLLS:
            continue
        try:
            with open_or_connect(path, read_only=read_only) as store:
                after = _show_new(store, printer, channel, after, hidden)
        except StoreLockedError:
            continue  # the other process does not serve it
        seen = _changed_at(path)


def _show_new(store: CableStore, printer: MessagePrinter, channel: str, after: int, hidden: Hidden) -> int:
    """Print messages that arrived after event `after`. Return the number of the latest event.

    For a remote store, wait for further messages until the reader of the output closes it.
    """
    is_remote = not isinstance(store, CableStore)
    while True:
        for event in store.events(after, timeout_s=_READER_POLL_S if is_remote else 0):
            after = event.sequence
            _show_event(store, printer, channel, event, hidden)
        if not is_remote or not printer.out.has_reader():
            return after


def _show_event(store: CableStore, printer: MessagePrinter, channel: str, event: Event, hidden: Hidden) -> None:
    post = event.post
    if event.kind is not EventKind.ACCEPTED or not post or post.channel != channel or post.type != TEXT:
        return
    message = store.resolve(post)
    by = message.hidden_by
    if by is None or hidden == "show":
        printer.show([message])
    elif hidden == "mark":
        printer.show([replace(message, text="")], {by.author: store.user(by.author).name})


def _changed_at(path: Path) -> float:
    """Return the time of the last write to the store's database."""
    found = 0.0
    for file in path.glob("generation-*/*"):
        with suppress(FileNotFoundError):  # LevelDB of the writing process removes files at the same time
            found = max(found, file.stat().st_mtime)
    return found


@click.command()
@with_store_to_read
def channels(store: CableStore, out: Output) -> None:
    """List the channels.

    Example: `cablestore channels --json`
    """
    out.table(
        ("channel", "members", "messages", "topic"),
        (
            {
                "channel": c.name,
                "members": c.members,
                "messages": c.posts.get("text", 0),
                "topic": c.topic,
                "posts": c.posts,
            }
            for c in store.channels()
        ),
    )


@click.command()
@click.option("--channel", shell_complete=complete_channel, help="List only members of this channel.")
@with_store_to_read
def users(store: CableStore, out: Output, channel: str | None) -> None:
    """List all authors, or the members of a channel.

    Example: `cablestore users --channel garden`
    """
    channel = None if channel is None else stored_channel(store, channel)
    found = list(store.users() if channel is None else store.members(channel))
    rows = [_user_fields(user) for user in found]
    own_key = store.public_key  # the local user is always an admin
    has_roles = any(user.role is not UserRole.USER for user in found if user.public_key != own_key)
    is_moderated = has_roles or any(row["marks"] for row in rows)
    if out.as_json:
        for row in rows:
            row["marks"] = row["marks"].split()
    out.table(("name", "public_key", *(("role", "marks") if is_moderated else ())), rows)


def _user_fields(user: User) -> dict[str, Any]:
    marks = {"hidden": user.hidden_by is not None, "blocked": user.is_blocked, "dropped": user.is_dropped}
    return {
        "name": user.name,
        "public_key": user.public_key.hex(),
        "role": user.role.name.lower(),
        "marks": " ".join(mark for mark, is_set in marks.items() if is_set),
    }


@click.command()
@click.argument("digest", metavar="HASH")
@with_store_to_read
def show(store: CableStore, out: Output, digest: str) -> None:
    """Show a post, or who deleted or dropped it. HASH is the post's 64 hex digits, or at least the first 4.

    For a hidden message, use `log --hidden show` to print the text.

    Example: `cablestore show 5ab64a0c`
    """
    found = full_hash(store, digest, with_deleted=True)
    fields: dict[str, Any] = {"hash": found.hex()}
    post = store.get(found)
    stone = store.deletion(found)
    if post is not None:
        fields |= {
            "type": post.type_name,
            "author": post.author.hex(),
            "name": store.user(post.author).name,
            "time": out.when(post.timestamp_ms),
            "timestamp_ms": post.timestamp_ms,
            "size_bytes": len(post.raw),
            "says": str(post.body),
            "local_only": post.is_local_only,
        }
        hiding = store.resolve(post).hidden_by if post.type == TEXT else None
        if hiding is not None:
            fields |= {"says": "", **_act_fields(store, out, "hidden", hiding)}
    elif stone is not None and stone.skeleton is not None:
        fields |= {
            "type": TYPE_NAMES[stone.skeleton.type],
            "author": stone.author.hex(),
            "name": store.user(stone.author).name,
            "time": out.when(stone.skeleton.timestamp_ms),
            "timestamp_ms": stone.skeleton.timestamp_ms,
            "deleted": out.when(stone.deleted_at_ms),
            "deleted_at_ms": stone.deleted_at_ms,
            "deleted_by": stone.deleted_by.hex(),
        }
    else:
        fields |= _dropped_fields(store, out, found)
    linked_by = store.links(found, incoming=True)
    fields |= {"links": [h.hex() for h in store.links(found)], "linked_by": [h.hex() for h in linked_by]}
    if out.as_json:
        out.say("", **fields, raw=post.raw.hex() if post else None)
    else:
        if post is None and stone is not None:
            out.say(f"deleted by {safe(fields['name'])}, its author, at {fields['deleted']}\n")
        rows = ({"field": key, "value": ", ".join(v) if isinstance(v, list) else str(v)} for key, v in fields.items())
        out.table(("field", "value"), rows)


def _act_fields(store: CableStore, out: Output, done: str, act: ModerationAct) -> dict[str, Any]:
    """Return who hid or dropped a post, when and why (moderation.md 4.3)."""
    by = safe(store.user(act.author).name)
    return {done: f"by {by} at {out.when(act.timestamp_ms)}", f"{done}_by": act.author.hex(), "reason": act.reason}


def _dropped_fields(store: CableStore, out: Output, digest: bytes) -> dict[str, Any]:
    """Return the known fields of a dropped post. Raises UsageError if the post is unknown."""
    known = store.moderation.dropped_post(digest)
    if known is None:
        raise click.UsageError(f"post {digest.hex()} not found")
    act = store.get(known.act)
    fields = {
        "type": TYPE_NAMES[known.skeleton.type],
        "author": known.author.hex(),
        "name": store.user(known.author).name,
        "time": out.when(known.skeleton.timestamp_ms),
        "timestamp_ms": known.skeleton.timestamp_ms,
    }
    said = None if act is None else act_of(act)
    return fields | ({"dropped": "yes"} if said is None else _act_fields(store, out, "dropped", said))


@click.command()
@with_store_to_read
def stats(store: CableStore, out: Output) -> None:
    """Show numbers of posts, sizes of views, and posts per period.

    Example: `cablestore stats -s my-store`
    """
    found = store.stats()
    disk = found.disk_size_bytes
    if out.as_json:
        views = {name: {**of._asdict(), "disk_size_bytes": disk.get(name, 0)} for name, of in found.views.items()}
        out.say(
            "",
            posts=found.posts,
            channels=found.channels,
            views=views,
            last_sequence=found.last_sequence,
            days=found.days,
        )
        return
    total = sum(found.posts.values())
    out.say(
        f"{counted(total, 'post')} in {counted(found.channels, 'channel')}, {counted(found.last_sequence, 'event')}\n"
    )
    out.table(("type", "posts"), ({"type": kind, "posts": number} for kind, number in found.posts.items()))
    out.say("")
    rows = [
        {"view": name, "rows": of.rows, "size": size(of.size_bytes), "on_disk": size(disk.get(name, 0))}
        for name, of in sorted(found.views.items(), key=lambda item: -item[1].size_bytes)
    ]
    out.table(("view", "rows", "size", "on_disk"), rows)
    out.say("")
    for line in histogram(found.days):
        out.say(line)


def histogram(days: list[tuple[int, int]]) -> Iterator[Text]:
    """Yield a bar per day, month or year: the shortest of these periods whose bars fit on a screen."""
    if not days:
        return
    for form in ("%Y-%m-%d", "%Y-%m", "%Y"):
        bars: Counter[str] = Counter()
        for day_ms, posts in days:
            bars[_named(day_ms, form)] += posts
        if len(bars) <= _BARS or form == "%Y":
            break
    most = max(bars.values())
    for name, posts in sorted(bars.items())[-_BARS:]:
        line = Text(f"{name:>10}  ")
        line.append("█" * max(1, round(_BAR_WIDTH * posts / most)), style="cyan")
        line.append(f" {posts:,}", style="dim")
        yield line


def _named(day_ms: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(day_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "after 9999"


COMMANDS: Final = (log, channels, users, show, stats)
