"""The command `search`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, get_args

import click
from rich.text import Text

from cablestore.cli.channel_argument import complete_channel
from cablestore.cli.messages import message_fields
from cablestore.cli.options import full_users, reading_options, stored_channel
from cablestore.cli.output import Output, colour_of, safe
from cablestore.cli.stores import open_or_connect
from cablestore.cli.values import Moment
from cablestore.plurals import counted
from cablestore.store.cursor import SearchCursor
from cablestore.store.emotes import shown_parts
from cablestore.store.searching import Order, SearchHit
from cablestore.store.store import CableStore

_NAME_CHARACTERS: Final = 20


@click.command()
@click.argument("words", nargs=-1)
@click.option("--channel", shell_complete=complete_channel, help="Search only messages of this channel.")
@click.option(
    "--author", metavar="USER", help="Search only messages of this user: a name, or the first digits of the key."
)
@click.option(
    "--after", "after_ms", type=Moment(), help="Search only messages since this time, such as 2024-01-31, today or 12h."
)
@click.option("--before", "before_ms", type=Moment(), help="Search only messages before this time.")
@click.option(
    "-n", "--number", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of messages."
)
@click.option(
    "--order",
    type=click.Choice(get_args(Order)),
    default="newest",
    show_default=True,
    help="List the newest or best matches first.",
)
@click.option("--cursor", metavar="CURSOR", help="Continue after an earlier search, which printed this cursor.")
@click.option("--index", "only_index", is_flag=True, help="Only update the index.")
@reading_options
def search(path: Path, out: Output, only_index: bool, read_only: bool, **chosen: Any) -> None:
    """Search the messages for WORDS.

    A message must contain all WORDS. "Two words" in quotes must be adjacent, and rust* matches the beginning of a word.
    Case and accents do not matter. In Korean and in scripts without spaces, such as Chinese and Thai, each letter is a
    word. Each emoji is also a word.

    Example: `cablestore search red 'tomat*' --channel garden`
    """
    if bool(chosen["words"]) == only_index:
        problem = "--index cannot be combined with words" if only_index else "missing words, for example: red tomatoes"
        raise click.UsageError(problem)
    with open_or_connect(path, read_only=read_only) as store:
        if (read_only or store.is_read_only) and not only_index:
            _show(store, out, **chosen)
            return
        pending = store.update_search_index(timeout_s=0)
        if pending or only_index:
            with out.progress("indexing", pending) as progress:
                pending = store.update_search_index(progress=progress)
        if only_index:
            _print_index(out, pending)
        else:
            _show(store, out, **chosen)
            store.update_search_index()  # runs after the answer, which does not depend on overwriting removed words


def _print_index(out: Output, pending: int) -> None:
    text = f"not indexed yet: about {counted(pending, 'post')}" if pending else "the search index is up to date"
    out.say(text, pending=pending)


def _show(
    store: CableStore,
    out: Output,
    *,
    words: tuple[str, ...],
    channel: str | None,
    author: str | None,
    after_ms: int | None,
    before_ms: int | None,
    number: int,
    order: Order,
    cursor: str | None,
) -> None:
    following = None if cursor is None else SearchCursor(cursor)
    user = None if author is None else full_users(store, [author])[0]
    shown = 0
    while True:  # a page contains fewer messages than requested if many are hidden
        page = store.search(
            " ".join(words),
            channel=channel if channel is None else stored_channel(store, channel),
            author=user,
            after_ms=after_ms,
            before_ms=before_ms,
            limit=number - shown,
            cursor=following,
            order=order,
        )
        for hit in page.hits:
            out.say(_line(hit, out), **_fields(hit))
        shown += len(page.hits)
        following = page.cursor
        if following is None or shown >= number:
            break
    if out.as_json:
        out.say("", cursor=following, pending=page.pending)
    if not shown:
        out.note("no messages found. Words match as a whole; add * to match words with this prefix")
    if following is not None:
        out.note(f"for more results, add --cursor {following}")
    if page.pending:
        out.note(f"not indexed yet: about {counted(page.pending, 'post')}. Search again, or run `search --index`")


def _line(hit: SearchHit, out: Output) -> Text:
    message = hit.message
    line = Text(f"{out.when(message.timestamp_ms)}  ")
    line.append(safe(message.channel), style="dim")
    line.append("  ")
    is_emote, parts = message.emote is not None, hit.excerpt.parts()
    name = safe(message.name)[:_NAME_CHARACTERS]
    line.append(f"* {name}" if is_emote else name, style=colour_of(message.author))
    line.append(" " if is_emote else "  ")
    for text, is_match in shown_parts(parts) if is_emote else parts:
        line.append(safe(text), style="bold yellow" if is_match else "")
    line.append(f"  {message.hash.hex()[:8]}", style="dim")
    return line


def _fields(hit: SearchHit) -> dict[str, Any]:
    return message_fields(hit.message) | {
        "marks": hit.marks,
        "excerpt": hit.excerpt.text,
        "excerpt_marks": hit.excerpt.marks,
    }


COMMANDS: Final = (search,)
