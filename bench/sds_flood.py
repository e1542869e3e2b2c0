"""Delays of repairs in a causal log beside attackers, simulated: `sds_flood.py [PARTICIPANTS]`, 50 by default."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from common import print_result, size, size_given

from cablestore.sds.settings import COMPACT_FILTER, Settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from sds_attackers import ATTACKS, Flood, FloodedSimulation
from sds_network import QUICK, Conditions, Result, Simulation

SECONDS = size(60, tiny=10)
SEED = 1
MOST_DELAY = 2
"""Delay of the slowest honest repair beside attackers, as a multiple of that without attackers."""


def delays(result: Result) -> str:
    """Return the median of all deliveries, and the slowest one."""
    return f"{result.latency_ms(0.5) / 1000:,.1f}, {result.latency_ms(1.0) / 1000:,.1f} s"


def main() -> None:
    """Simulate without attackers and with them."""
    participants = size_given(50, tiny=4)
    settings = replace(Settings(), filter=COMPACT_FILTER, lost_after_ms=None) if size(1, tiny=0) else QUICK
    messages = size(60, tiny=4)
    conditions = Conditions(participants, messages, SECONDS, loss=0.3, settings=settings, most_seconds=36_000)
    flood = Flood(attackers=len(ATTACKS), named=size(64, tiny=4))
    print(
        f"# {participants} participants, {messages} messages in {SECONDS} s, 30% lost; beside {flood.attackers} attackers"
    )
    calm = Simulation(conditions, SEED).run()
    print_result("without attackers, from sending to delivery: half, all", delays(calm), "")
    flooded = FloodedSimulation(conditions, SEED, flood).run()
    print_result("beside attackers, from sending to delivery: half, all", delays(flooded), "")
    ratio = flooded.latency_ms(1.0) / calm.latency_ms(1.0)
    print_result(
        "slowest delivery beside attackers", f"{ratio:.2f} of the other", f"at most {MOST_DELAY}", ratio <= MOST_DELAY
    )


if __name__ == "__main__":
    main()
