"""Limits of the protocol between a program and the process that has its store open."""

from __future__ import annotations

from typing import Final

MAX_REMOTE_CLIENTS: Final = 64
"""Programs and commands that use a store of another process at the same time, and as many more that wait for a
connection. Each has up to four threads there while it calls, and a `log --follow` runs for days."""

MAX_REMOTE_CALLS: Final = 64
"""Calls of one program at once, one a thread. Further threads of the program wait; a foreign client gets an error."""

MAX_REMOTE_ITERATORS: Final = 64
"""Iterators of one program at once. Each may hold a state of the database."""

MAX_REMOTE_SNAPSHOTS: Final = 16
"""Snapshots of one program at once. Each keeps the space of what is deleted meanwhile."""

MAX_REMOTE_REQUEST_SIZE_BYTES: Final = 201_326_592
"""One call with its arguments: the largest archive and the hashes of two million posts. `ingest` sends its posts in
several calls."""

MAX_REMOTE_REPLY_SIZE_BYTES: Final = 268_435_456
"""One result: a page of the longest messages has 5 MB. Iterators come in parts."""

REMOTE_INGEST_SIZE_BYTES: Final = 1_048_576
"""About the size of the posts that `ingest` sends in one call."""

MAX_REMOTE_ITEMS: Final = 256
"""Items of an iterator in one message. Two messages may be on their way."""

MAX_REMOTE_HELLO_SIZE_BYTES: Final = 4_096
"""The first line of either side: versions, dialect, and the path of the store."""

REMOTE_HELLO_TIMEOUT_S: Final = 10.0
"""Seconds within which a program must send its first line. Programs send it at once."""

REMOTE_SLOW_READER_S: Final = 20.0
"""Seconds after which a program that does not read its results is disconnected. Results that wait take memory."""

REMOTE_TIMEOUT_S: Final = 20.0
"""Seconds without a sign of life of the process that has the store open, after which a call fails. A busy disk may block
a process for seconds. A write that did not begin until then never runs."""

REMOTE_CHANGE_WINDOW_S: Final = 0.02
"""Writes within this time are reported to a program together. The first of them is reported at once."""
