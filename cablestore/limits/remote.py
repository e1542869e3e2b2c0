"""Limits of the protocol between a program and the process that has its store open."""

from __future__ import annotations

from typing import Final

MAX_REMOTE_CLIENTS: Final = 64
"""Maximum number of programs and commands that use a store through the process that has it open, at the same time. The
same number may wait for a connection. Each occupies up to four threads of that process during calls, and a `log
--follow` may run for days."""

MAX_REMOTE_CALLS: Final = 64
"""Maximum number of concurrent calls of one program, one in each thread. Further threads of the program wait; a foreign
client receives an error."""

MAX_REMOTE_ITERATORS: Final = 64
"""Maximum number of open iterators of one program. Each may hold a snapshot of the database."""

MAX_REMOTE_SNAPSHOTS: Final = 16
"""Maximum number of open snapshots of one program. Posts deleted after a snapshot occupy disk space until it closes."""

MAX_REMOTE_REQUEST_SIZE_BYTES: Final = 201_326_592
"""Maximum size of one call with its arguments: the largest archive and the hashes of two million posts. `ingest` sends
its posts in several calls."""

MAX_REMOTE_REPLY_SIZE_BYTES: Final = 268_435_456
"""Maximum size of one result. A page of the longest messages needs 5 MB. Iterators are sent in parts."""

REMOTE_INGEST_SIZE_BYTES: Final = 1_048_576
"""Approximate size of the posts that `ingest` sends in one call."""

MAX_REMOTE_ITEMS: Final = 256
"""Maximum number of iterator items in one message. Two messages may be in flight."""

MAX_REMOTE_HELLO_SIZE_BYTES: Final = 4_096
"""Maximum size of the first line of either side: versions, dialect and the path of the store."""

REMOTE_HELLO_TIMEOUT_S: Final = 10.0
"""Maximum time for a program to send its first line. Programs send it at once."""

REMOTE_SLOW_READER_S: Final = 20.0
"""Time without reading results before the process disconnects a program. Unread results occupy memory."""

REMOTE_TIMEOUT_S: Final = 20.0
"""Time without a sign of life from the serving process before a call fails. A busy disk may block a process for
seconds. A write that did not begin by then never runs."""

REMOTE_CHANGE_WINDOW_S: Final = 0.02
"""Writes within this time are reported to a program together. The first write is reported at once."""
