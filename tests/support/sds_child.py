"""A process with a causal log that works until it is killed, and prints received and written messages.

`sds_child.py FOLDER SEED`: each line on standard output is an effect that was handled, before it is confirmed, or an
own message on disk.
"""

from __future__ import annotations

import random
import sys
from itertools import count

from sds_people import CHANNEL, SMALL, START_MS, content

from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.effects import Deliver, Send
from cablestore.sds.log import CausalLog


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def others(number: int) -> bytes:
    """Return messages of another member, each of which depends on the two before it."""
    before = [f"m{earlier}" for earlier in (number - 2, number - 1) if earlier >= 0]
    return content(f"m{number}", *before, at=number)


def main() -> None:
    folder, seed = sys.argv[1], int(sys.argv[2])
    rng = random.Random(seed)
    with CausalLog.open(folder) as log:
        channel = log.channel(CHANNEL, "ann", SMALL)
        say("open")
        for step in count():
            now_ms = START_MS + 100_000 * seed + 100 * step
            first = sum(message.sender_id == "eve" for message in channel.log())
            batch = [others(first + number) for number in range(8)]
            rng.shuffle(batch)
            assert all(each.verdict is not ReceiveResult.REFUSED for each in channel.receive_all(batch, now_ms))
            say("wrote", channel.send(b"own", now_ms).message_id)
            channel.tick(now_ms, rng.random)
            effects = channel.outbox(most=rng.randrange(1, 40))
            for sequence, effect in effects:
                what = effect.message if isinstance(effect, Deliver) else effect
                reason = effect.reason.value if isinstance(effect, Send) else ""
                say("effect", sequence, type(effect).__name__ + reason, getattr(what, "message_id", "-"))
            if effects:
                channel.confirm(effects[-1][0])


main()
