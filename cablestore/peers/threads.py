"""The threads of a node: one reads the store, and one stores posts.

The event loop never accesses the store. Jobs go to a thread through a queue. Their results return to the loop in
batches, because waking the loop costs more than most answers.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from cablestore import limits
from cablestore.aio.threads import on_loop
from cablestore.errors import CableStoreError, StoreClosedError
from cablestore.index.reader import Reader, SnapshotReader
from cablestore.index.verdict import Outcome
from cablestore.interruptible import in_thread
from cablestore.peers.policy_keeper import PolicyKeeper
from cablestore.store.following import read_again
from cablestore.store.store import CableStore

_MOST_JOBS: Final = 64
"""Maximum number of jobs that share a snapshot and return to the loop together."""
_MOST_ROUNDS: Final = 8
"""Maximum number of loop iterations in which jobs wait for further jobs."""
_SHORT_S: Final = 0.0005

T = TypeVar("T")


class Stopwatch:
    """Stopwatch for the time that a thread spends on a piece of work. Create and use it in that thread.

    Querying the CPU time of a thread costs ten times as much as reading the clock. So the elapsed time is used for
    short work. For longer work, during which another thread may have run, the system is queried.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, spent: Callable[[], float] = time.thread_time
    ) -> None:
        """Start measuring. `clock` returns the time, `spent` the CPU time of the thread, both in seconds."""
        self.begin: Final = clock
        """Returns the argument for `spent_s`."""
        self._spent = spent
        self._spent_before_s = spent()

    def spent_s(self, began_s: float) -> float:
        """Return the seconds spent since `begin`. The result is never too low."""
        passed_s = self.begin() - began_s
        if passed_s < _SHORT_S:
            return passed_s
        spent_s = self._spent()
        before_s, self._spent_before_s = self._spent_before_s, spent_s
        return min(passed_s, spent_s - before_s)


class ReadJob(Protocol):
    """A job that reads from the store. The thread sets `cpu_s` to the time spent."""

    cpu_s: float

    def run(self, reader: SnapshotReader) -> None:
        """Read with `reader`, in the reading thread. Keep any exception for `done`.

        Other jobs use the reader too. Call its `keep` to use it in later runs.
        """

    def fail(self, error: Exception) -> None:
        """Keep the error for `done`. The thread calls this instead of `run` if the store cannot be read."""

    def done(self) -> None:
        """Process the result, on the loop."""


class Call:
    """A job that calls a function with a reader, and sets the result of `future`."""

    def __init__(self, store: CableStore, function: Callable[[Reader], Any], future: asyncio.Future[Any]) -> None:
        self._store = store
        self._function = function
        self._future = future
        self._settle: Callable[[], object] = future.cancel
        self.cpu_s = 0.0

    def run(self, reader: SnapshotReader) -> None:
        """Call the function."""
        try:
            try:
                result = self._function(reader)
            except StoreClosedError:  # a rebuild may have closed only the snapshot
                result = read_again(self._store, self._result_now)
            self._settle = partial(self._future.set_result, result)
        except Exception as error:  # noqa: BLE001 - it is raised where the future is awaited
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Raise the error where the future is awaited."""
        self._settle = partial(self._future.set_exception, error)

    def _result_now(self) -> Any:
        with self._store.parts.engine.reading() as reader:
            return self._function(reader)

    def done(self) -> None:
        """Complete the future."""
        if not self._future.done():
            self._settle()


class ReadThread:
    """The reading thread. It receives jobs in batches, and the jobs of a batch share one snapshot.

    A batch is passed to the thread when the previous batch is done and a loop iteration has added no job. If the loop
    accepted requests while the thread reads, each of them would also wait for Python's lock.
    """

    def __init__(self, store: CableStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._jobs: list[ReadJob] = []
        self._is_busy = False
        """True while jobs are collected or read."""
        self._batches: queue.SimpleQueue[list[ReadJob] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="cablestore-read", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of waiting jobs."""
        return len(self._jobs)

    def submit(self, job: ReadJob) -> None:
        """Add a job. Call it on the loop."""
        self._jobs.append(job)
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._submit_jobs, len(self._jobs), _MOST_ROUNDS)

    def _submit_jobs(self, known: int, rounds: int) -> None:
        """Pass the jobs to the thread, unless their number has grown from `known` since the last loop iteration.

        In that case, wait for another loop iteration, up to `rounds` times.
        """
        count = len(self._jobs)
        if known < count < _MOST_JOBS and rounds:
            self._loop.call_soon(self._submit_jobs, count, rounds - 1)
            return
        self._batches.put(self._jobs[:_MOST_JOBS])
        del self._jobs[:_MOST_JOBS]

    def begin(self, function: Callable[[Reader], T]) -> asyncio.Future[T]:
        """Queue a call of `function` on the present state. Return the future of its result. Later jobs run after it.

        If a rebuild replaces the database meanwhile, the function is called again.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self.submit(Call(self._store, function, future))
        return future

    async def call(self, function: Callable[[Reader], T]) -> T:
        """Return the result of a function on the present state."""
        return await self.begin(function)

    def flush(self) -> None:
        """Pass all jobs to the thread now. Call it on the loop."""
        self._batches.put(self._jobs)
        self._jobs = []

    def close(self) -> None:
        """End the thread after all jobs that were passed to it."""
        self._batches.put(None)
        self._thread.join()

    def _work(self) -> None:
        watch = Stopwatch()
        while (jobs := self._batches.get()) is not None:
            try:
                reader = self._store.parts.engine.reading()
            except CableStoreError as error:
                for job in jobs:
                    job.fail(error)
            else:
                for job in jobs:
                    began_s = watch.begin()
                    job.run(reader)
                    job.cpu_s = watch.spent_s(began_s)
                reader.close()
            on_loop(self._loop, self._take, jobs)

    def _take(self, jobs: list[ReadJob]) -> None:
        for job in jobs:
            try:
                job.done()
            except Exception as error:  # noqa: BLE001 - it is reported, and the remaining jobs are completed
                context = {"message": "the callback of a read failed", "exception": error}
                self._loop.call_exception_handler(context)
        if self._jobs:
            self._loop.call_soon(self._submit_jobs, len(self._jobs), _MOST_ROUNDS)
        else:
            self._is_busy = False


async def beside_loop(work: Callable[[], T]) -> T:
    """Run work in a separate thread, and return its result.

    The loop's executor belongs to the program: its threads may all be busy, and they outlive the node.
    """
    answer = in_thread(work)
    try:
        return await asyncio.wrap_future(answer)
    finally:
        if answer.done():
            answer.thread.join()  # the thread is ending


class PostsToStore(NamedTuple):
    """Posts that wait to be stored, and the future of their outcomes.

    The result is None if the posts must be judged again.
    """

    posts: list[bytes]
    outcomes: asyncio.Future[list[Outcome] | None]
    policy_version: int | None
    """The version of the policy that accepted the posts, None if no policy applies."""
    is_verified: bool
    """True if the signatures of the posts were verified."""


class WriteThread:
    """The storing thread. Waiting posts are verified and written together."""

    def __init__(
        self, store: CableStore, loop: asyncio.AbstractEventLoop, policies: PolicyKeeper | None = None
    ) -> None:
        """With `policies`, posts that an earlier version of the policy accepted are not written."""
        self._policies = policies
        self._writer = store.parts.writer
        self._loop = loop
        self._posts: queue.SimpleQueue[PostsToStore | None] = queue.SimpleQueue()
        self.queued_size_bytes = 0
        """Size of the waiting posts. Only used on the loop."""
        self.failure = ""
        """Why the last posts could not be stored, or ""."""
        self._thread = threading.Thread(target=self._work, name="cablestore-write", daemon=True)
        self._thread.start()

    def submit(
        self, posts: list[bytes], *, policy_version: int | None = None, is_verified: bool = False
    ) -> asyncio.Future[list[Outcome] | None]:
        """Queue posts for verifying and storing, and return a future of their outcomes. Call it on the loop.

        The outcomes are None, and nothing is written, if `policy_version` is given and the policy changed meanwhile. The
        future raises CableStoreError if the posts cannot be stored.
        """
        future: asyncio.Future[list[Outcome] | None] = self._loop.create_future()
        self.queued_size_bytes += sum(map(len, posts))
        self._posts.put(PostsToStore(posts, future, policy_version, is_verified))
        return future

    def close(self) -> None:
        """End the thread after all posts are stored."""
        self._posts.put(None)
        self._thread.join()

    def _work(self) -> None:
        is_last = False
        while not is_last:
            taken = [self._posts.get()]
            count = 0
            while count < limits.MAX_BATCH_POSTS and taken[-1] is not None and not self._posts.empty():
                count += len(taken[-1].posts)
                taken.append(self._posts.get())
            for _, group in groupby(filter(None, taken), key=attrgetter("is_verified")):
                self._store_all(list(group))
            is_last = None in taken

    def _store_all(self, taken: list[PostsToStore]) -> None:
        """Store posts that are all verified, or all unverified. Hand back posts that an outdated policy accepted."""
        is_verified = taken[0].is_verified
        version = None if self._policies is None else self._policies.version
        outdated = [each for each in taken if each.policy_version not in (None, version)]
        if outdated:
            rest = sum(len(raw) for each in outdated for raw in each.posts)
            on_loop(self._loop, self._hand_over, outdated, None, rest)
            taken = [each for each in taken if each.policy_version in (None, version)]
        raws = [raw for each in taken for raw in each.posts]
        found: list[Outcome] | CableStoreError
        try:
            size = limits.MAX_BATCH_POSTS // 4
            batches = self._writer.ingest(raws, sync=False, batch_posts=size, verify=not is_verified)
            found = list(chain.from_iterable(batches))
            self.failure = ""
        except CableStoreError as error:
            self.failure = str(error)
            found = error  # a full disk, or a closed store: the next pass offers the unstored posts again
        on_loop(self._loop, self._hand_over, taken, found, sum(map(len, raws)))

    def _hand_over(
        self, taken: list[PostsToStore], found: list[Outcome] | CableStoreError | None, size_bytes: int
    ) -> None:
        self.queued_size_bytes -= size_bytes
        at = 0
        for posts, future, *_ in taken:
            begin, at = at, at + len(posts)
            if future.cancelled():  # the task that waited was cancelled, because the node stops
                continue
            if isinstance(found, CableStoreError):
                future.set_exception(found)
            else:
                future.set_result(None if found is None else found[begin:at])
