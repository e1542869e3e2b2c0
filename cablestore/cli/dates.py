"""Notes on the dates of posts that commands wrote."""

from __future__ import annotations

from cablestore import limits
from cablestore.cli.output import Output
from cablestore.protocol.post import Post
from cablestore.store.dating import utc
from cablestore.store.options import system_clock_ms
from cablestore.store.store import CableStore


def note_date(store: CableStore, out: Output, post: Post) -> None:
    """Print a note if a post is dated far ahead of the clock. Print a warning if the clock may be wrong."""
    if post.timestamp_ms >= system_clock_ms() + limits.MAX_OWN_CLOCK_STEP_MS:
        out.note(f"the post is dated {utc(post.timestamp_ms)}, just after the post that it replaces")
    difference = store.clock_difference()
    if difference is not None:
        out.note(f"warning: {difference.warning()}")
