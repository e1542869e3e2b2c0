"""Participants of one causal log over a network with losses, delays, duplicates, reordering and partitions.

Participants may be killed. Time is simulated, and random numbers have a seed. Everything else is real: each participant
has a database (in memory, or a LevelDB) and the same `CausalLog` as an application. Invariants are asserted at every
step.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

from cablestore.index.database import Database, RowWriter, SnapshotSource, Source
from cablestore.index.memory import MemoryDB
from cablestore.sds.bloom import FilterParameters
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.effects import Deliver, Effect, Lost, Missing, Retrieve, Send
from cablestore.sds.log import CausalLog, LogChannel
from cablestore.sds.repair import RepairParameters
from cablestore.sds.settings import Backoff, Settings

START_MS = 1_700_000_000_000
CHANNEL = "room"

QUICK = Settings(
    filter=FilterParameters(1_000, 0.001),
    repair=RepairParameters(t_min_ms=1_000, t_max_ms=4_000),
    repair_backoff=Backoff(4_000, 30_000),
    resend=Backoff(3_000, 30_000),
    resend_possibly=Backoff(10_000, 60_000),
    retrieve=Backoff(2_000, 60_000),
    lost_after_ms=None,
    sync_interval_ms=4_000,
)
"""Ten times as fast as the defaults, so that a simulated minute is long."""


class Killed(BaseException):
    """End of the process, which its code does not catch."""


class Mortal:
    """Database whose process may be killed in a write: before it, or right after it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.dies_before_write = self.dies_after_write = False

    def snapshot(self) -> SnapshotSource:
        return self.database.snapshot()

    def live(self) -> Source:
        return self.database.live()

    def write(self, rows: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        if self.dies_before_write:
            raise Killed
        self.database.write(rows, sync=False)
        if self.dies_after_write:
            raise Killed

    def sync(self) -> None:
        self.database.sync()

    def bulk_writer(self) -> RowWriter:
        return self.database.bulk_writer()

    def flush(self) -> None:
        self.database.flush()

    def compact(self) -> None:
        self.database.compact()

    def remove_unused_tables(self) -> None:
        self.database.remove_unused_tables()

    def approximate_size_bytes(self, start: bytes, stop: bytes) -> int:
        return self.database.approximate_size_bytes(start, stop)

    def close(self) -> None:
        self.database.close()


@dataclass
class Conditions:
    """Plan of the network and the participants. Times are in milliseconds."""

    participants: int = 5
    messages: int = 40
    seconds: int = 60
    """The messages are sent within this time, by random participants."""
    loss: float = 0.3
    doubled: float = 0.1
    delay_ms: tuple[int, int] = (20, 2_000)
    partitions: tuple[tuple[int, int], ...] = ()
    """Seconds from and to which half of the participants do not receive messages of the other half, with other halves
    each time.
    """
    kills: int = 0
    """Number of participants that are killed, at random moments."""
    down_ms: tuple[int, int] = (500, 15_000)
    settings: Settings = QUICK
    store: bool = False
    """Whether a store has all sent messages and returns missing ones. It fails sometimes, too."""
    tick_ms: int = 1_000
    most_seconds: int = 7_200
    """The time by which all must be equal."""


@dataclass
class Result:
    """Result of a simulation."""

    sent: int = 0
    converged_ms: int = 0
    """Time from the last sent message until all logs were equal and no message was in transit."""
    latencies_ms: list[int] = field(default_factory=list)
    """Time from the sending of each message to its delivery at each other participant."""
    counts: Counter[str] = field(default_factory=Counter)

    def latency_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    @property
    def mean_latency_ms(self) -> float:
        return statistics.fmean(self.latencies_ms) if self.latencies_ms else 0.0


class Participant:
    """Participant: its disk, and the process that may be killed."""

    def __init__(self, name: str, database: Database, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        self.database = database
        self.delivered: dict[str, int] = {}
        """Ids that the application got, in order, with the numbers of their effects. It simulates the application's
        disk.
        """
        self.handled = 0
        self.dies_at: str | None = None
        self.channel: LogChannel | None = None
        self.start()

    def start(self) -> None:
        self.mortal = Mortal(self.database)
        log = CausalLog.in_memory(self.mortal)
        self.channel = log.channel(CHANNEL, self.name, self.settings)

    @property
    def running(self) -> LogChannel:
        assert self.channel is not None
        return self.channel

    def log_ids(self) -> list[str]:
        log = CausalLog.in_memory(self.database).channel(CHANNEL, self.name, self.settings)
        return [message.message_id for message in log.log()]


INSTANTS = ("before write", "after write", "before effects", "between effects", "before confirming")
Event = Callable[[], None]


class Simulation:
    """Simulation. `run` returns when all logs are equal, and asserts the invariants on the way."""

    def __init__(self, conditions: Conditions, seed: int, database: Callable[[], Database] = MemoryDB) -> None:
        self.conditions = conditions
        self.random = random.Random(seed)
        self.now_ms = START_MS
        self.result = Result()
        self.participants = [
            Participant(f"participant-{number}", database(), conditions.settings)
            for number in range(conditions.participants)
        ]
        self._queue: list[tuple[int, int, Event]] = []
        self._order = count()
        self._sent_ms: dict[str, int] = {}
        self._store: dict[str, bytes] = {}
        self._halves: list[tuple[int, int, set[str]]] = []

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> Result:
        conditions, rng = self.conditions, self.random
        last_ms = START_MS + conditions.seconds * 1_000
        for _ in range(conditions.messages):
            who = rng.choice(self.participants)
            self.at(START_MS + rng.randrange(conditions.seconds * 1_000), partial(self.write, who))
        for start_s, stop_s in conditions.partitions:
            half = rng.sample(self.participants, len(self.participants) // 2)
            self._halves.append((START_MS + start_s * 1000, START_MS + stop_s * 1000, {each.name for each in half}))
            last_ms = max(last_ms, START_MS + stop_s * 1000)
        for _ in range(conditions.kills):
            who = rng.choice(self.participants)
            self.at(START_MS + rng.randrange(conditions.seconds * 1_000), partial(self.doom, who))
        for who in self.participants:
            self.at(START_MS + rng.randrange(conditions.tick_ms), partial(self.tick, who))
        self._advance(last_ms)
        while not self.is_equal():
            assert self.now_ms < START_MS + conditions.most_seconds * 1000, self.differences()
            self._advance(self.now_ms + 5_000)
        self.result.converged_ms = self.now_ms - last_ms
        self.check()
        return self.result

    def at(self, time_ms: int, event: Event) -> None:
        heappush(self._queue, (time_ms, next(self._order), event))

    def _advance(self, until_ms: int) -> None:
        while self._queue and self._queue[0][0] <= until_ms:
            self.now_ms, _, event = heappop(self._queue)
            event()
        self.now_ms = until_ms

    # --- participants -------------------------------------------------------------------------------

    def write(self, who: Participant) -> None:
        if who.channel is None:  # later, when it runs again
            self.at(self.now_ms + 1_000, partial(self.write, who))
            return
        content = f"{who.name} {next(self._order)}".encode()
        with self.alive(who):
            message = who.running.send(content, self.now_ms)
            assert message.lamport_ms is not None
        self.handle(who)

    def tick(self, who: Participant) -> None:
        if who.channel is not None:
            with self.alive(who):
                who.running.tick(self.now_ms, self.random.random)
            self.handle(who)
        self.at(self.now_ms + self.conditions.tick_ms, partial(self.tick, who))

    def hear(self, who: Participant, data: bytes) -> None:
        if who.channel is None:
            self.result.counts["heard by nobody"] += 1
            return
        with self.alive(who):
            received = who.running.receive(data, self.now_ms)
            assert received.verdict is not ReceiveResult.REFUSED or self.may_be_refused(data), received
            self.result.counts[received.verdict.value] += 1
        self.handle(who)

    def retrieve(self, who: Participant, message_id: str) -> None:
        if who.channel is None or message_id not in self._store:
            return
        with self.alive(who):
            who.running.retrieved(self._store[message_id], self.now_ms)
            self.result.counts["retrieved"] += 1
        self.handle(who)

    def doom(self, who: Participant) -> None:
        who.dies_at = self.random.choice(INSTANTS)
        who.mortal.dies_before_write = who.dies_at == "before write"
        who.mortal.dies_after_write = who.dies_at == "after write"

    @contextlib.contextmanager
    def alive(self, who: Participant) -> Iterator[None]:
        """Run code of a participant's process. The process may be killed in it, and is started again later."""
        try:
            yield
        except Killed:
            self.result.counts["kills"] += 1
            who.channel = None
            who.dies_at = None
            self.at(self.now_ms + self.random.randint(*self.conditions.down_ms), partial(self.restart, who))

    def restart(self, who: Participant) -> None:
        who.start()
        self.handle(who)

    def handle(self, who: Participant) -> None:
        """Handle the outbox, as an application does."""
        if who.channel is None:
            return
        with self.alive(who):
            self._die(who, "before effects")
            while effects := who.running.outbox():
                for number, (sequence, effect) in enumerate(effects):
                    self.do(who, sequence, effect)
                    if number == len(effects) // 2:
                        self._die(who, "between effects")
                self._die(who, "before confirming")
                who.running.confirm(effects[-1][0])

    @staticmethod
    def _die(who: Participant, instant: str) -> None:
        if who.dies_at == instant:
            raise Killed

    def do(self, who: Participant, sequence: int, effect: Effect) -> None:
        again = sequence <= who.handled
        who.handled = max(who.handled, sequence)
        if isinstance(effect, Send):
            self.broadcast(who, effect)
        elif isinstance(effect, Deliver) and not again:
            message = effect.message
            assert message.message_id not in who.delivered, "delivered twice"
            for entry in message.causal_history:
                assert entry.message_id in who.delivered or entry.sender_id == who.name, "delivered before a dependency"
            who.delivered[message.message_id] = self.now_ms
            if message.message_id in self._sent_ms:
                self.result.latencies_ms.append(self.now_ms - self._sent_ms[message.message_id])
        elif isinstance(effect, Missing | Retrieve):
            self.result.counts["missing"] += isinstance(effect, Missing)
            if self.conditions.store and self.random.random() > self.conditions.loss:
                message_id = effect.entry.message_id
                self.at(self.now_ms + self.delay_ms(), partial(self.retrieve, who, message_id))
        elif isinstance(effect, Lost):
            raise AssertionError("nothing is lost while somebody has it")

    # --- the network ----------------------------------------------------------------------------------

    def broadcast(self, sender: Participant, effect: Send) -> None:
        result = self.result
        result.counts[f"send {effect.reason.value}"] += 1
        result.counts["bytes sent"] += len(effect.data)
        if effect.reason.value == "new" and effect.message_id not in self._sent_ms:
            self._sent_ms[effect.message_id] = self.now_ms
            result.sent += 1
            self._store[effect.message_id] = effect.data
        for who in self.participants:
            if who is sender and self.random.random() > 0.1:  # some transports return own messages
                continue
            copies = 1 + (self.random.random() < self.conditions.doubled)
            for _ in range(copies):
                if self.random.random() >= self.conditions.loss and not self.is_cut(sender, who):
                    self.at(self.now_ms + self.delay_ms(), partial(self.hear, who, effect.data))

    def delay_ms(self) -> int:
        return self.random.randint(*self.conditions.delay_ms)

    def is_cut(self, one: Participant, other: Participant) -> bool:
        return any(
            start <= self.now_ms < stop and (one.name in half) != (other.name in half)
            for start, stop, half in self._halves
        )

    # --- invariants -----------------------------------------------------------------------------------

    def is_equal(self) -> bool:
        if any(who.channel is None for who in self.participants):
            return False
        counts = {who.running.counters().logged for who in self.participants}
        if len(counts) > 1 or not counts:
            return False
        return len({tuple(who.log_ids()) for who in self.participants}) == 1

    def differences(self) -> str:
        logs = {who.name: set(who.log_ids()) for who in self.participants}
        everything = set().union(*logs.values())
        lacking = {name: len(everything - ids) for name, ids in logs.items() if everything - ids}
        return f"of {len(everything)} messages participants lack {lacking}"

    def check(self) -> None:
        """Check that all logs have all sent messages in one order, and each application got each of them once."""
        first = self.participants[0].log_ids()
        assert set(self._sent_ms) <= set(first), "a message was lost"
        log = list(self.participants[0].running.log())
        places = [(message.lamport_ms or 0, message.message_id.encode()) for message in log]
        assert places == sorted(places)
        for who in self.participants:
            ids = who.log_ids()
            assert ids == first
            senders = {m.message_id: m.sender_id for m in who.running.log()}
            own = {message_id for message_id, sender in senders.items() if sender == who.name}
            assert set(who.delivered) == set(ids) - own
            self.check_rest(who)

    def may_be_refused(self, data: bytes) -> bool:
        """Return True if a participant may reject these bytes."""
        return False

    def check_rest(self, who: Participant) -> None:
        """Check the state outside the log."""
        assert who.running.counters().waiting == 0
        assert not list(who.running.missing())
