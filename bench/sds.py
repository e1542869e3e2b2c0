"""Causal logs: durable messages per second, memory with a long log, overhead. `sds.py [MESSAGES]`, 20,000 by default."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common import print_result, resident_mb, size_given

from cablestore.sds.effects import Deliver, Send
from cablestore.sds.log import CausalLog, LogChannel
from cablestore.sds.settings import COMPACT_FILTER, Settings

START_MS = 1_700_000_000_000
BATCH = 100
CONTENT = b"x" * 200
SIZES = (
    ("18,752 bytes of filter", Settings(), 18_800),
    ("1,880 bytes of filter", Settings(filter=COMPACT_FILTER), 3_500),
)


def sent(channel: LogChannel, number: int, log: CausalLog) -> Iterator[list[bytes]]:
    """Send this many messages, in batches of one write, pass them to the transport and confirm, like an application."""
    for start in range(0, number, BATCH):
        now_ms = START_MS + 1_000 * (channel.counters().logged // 1_000)
        with log.batch():
            for i in range(start, min(start + BATCH, number)):
                channel.send(CONTENT + b"%d" % i, now_ms)
        effects = channel.outbox()
        yield [effect.data for _, effect in effects if isinstance(effect, Send)]
        channel.confirm(effects[-1][0], sync=False)


def throughput(number: int, name: str, settings: Settings, most_overhead: int) -> None:
    """Send as Ann and receive as Bob, measured separately. Bob's outbox is read and confirmed."""
    with tempfile.TemporaryDirectory() as folder, CausalLog.open(Path(folder) / "ann") as here:
        ann = here.channel("bench", "ann", settings)
        with CausalLog.open(Path(folder) / "bob") as there:
            bob = there.channel("bench", "bob", settings)
            for _ in range(70):  # own unacknowledged messages: each filter is compared with them
                bob.send(CONTENT, START_MS, sync=False)
            bob.confirm(70)
            send_s = receive_s = 0.0
            size_bytes = delivered = 0
            started = time.perf_counter()
            for batch in sent(ann, number, here):
                send_s += time.perf_counter() - started
                size_bytes += sum(map(len, batch))
                started = time.perf_counter()
                bob.receive_all(batch, START_MS + number)
                effects = bob.outbox()
                delivered += sum(isinstance(effect, Deliver) for _, effect in effects)
                bob.confirm(effects[-1][0], sync=False)
                receive_s += time.perf_counter() - started
                started = time.perf_counter()
            assert delivered == number
            assert [m.message_id for m in bob.newest(5)] == [m.message_id for m in ann.newest(5)]
    print_result(f"sent, {name}", f"{number / send_s:,.0f} /s", "at least 2,000 /s", number / send_s >= 2_000)
    print_result(f"received, {name}", f"{number / receive_s:,.0f} /s", "at least 2,000 /s", number / receive_s >= 2_000)
    overhead = size_bytes / number - len(CONTENT) - 5
    print_result(
        f"overhead of a message, {name}",
        f"{overhead:,.0f} bytes",
        f"at most {most_overhead:,}",
        overhead <= most_overhead,
    )


def one_by_one(number: int) -> None:
    """Measure a write with `sync` per event, as in a chat client."""
    with tempfile.TemporaryDirectory() as folder, CausalLog.open(folder) as log:
        channel = log.channel("bench", "ann", Settings(filter=COMPACT_FILTER))
        started = time.perf_counter()
        for i in range(number):
            channel.send(CONTENT, START_MS + 1_000 * i)
        took_s = time.perf_counter() - started
    print_result("sent one by one, each on the disk, 1,880 bytes of filter", f"{number / took_s:,.0f} /s", "")


def memory(number: int) -> None:
    """Measure memory while a log grows."""
    settings = Settings(filter=COMPACT_FILTER)
    with tempfile.TemporaryDirectory() as folder, CausalLog.open(folder) as log:
        channel = log.channel("bench", "ann", settings)
        for done, _ in enumerate(sent(channel, number, log), 1):
            if done * BATCH * 4 % number == 0:
                everything, without_files = resident_mb()
                print_result(
                    f"memory with a log of {done * BATCH:,}",
                    f"{everything:,.0f}, {without_files:,.0f} MB",
                    "all, without mapped files",
                )
        size_bytes = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        print_result("disk, a message", f"{size_bytes / number:,.0f} bytes", "")
        started = time.perf_counter()
        for _ in range(100):
            channel.newest(50)
        print_result("the newest 50", f"{(time.perf_counter() - started) * 10:.2f} ms", "")


def main() -> None:
    """Run the benchmark, and print its results beside the targets."""
    number = size_given(20_000, tiny=400)
    print(f"# causal logs: {number:,} messages of {len(CONTENT)} bytes, {BATCH} in a write, each write synced")
    for name, settings, most_overhead in SIZES:
        throughput(min(number, 20_000), name, settings, most_overhead)
    one_by_one(min(number, 2_000))
    memory(number)


if __name__ == "__main__":
    main()
