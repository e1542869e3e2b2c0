"""The tasks of maintenance, in the event loop of the process that serves a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from cablestore.maintenance.backup_schedule import BackupPlan, BackupSchedule, BackupState
from cablestore.maintenance.metrics import MaintenanceMetrics
from cablestore.maintenance.retention import Retention
from cablestore.store.keep_ages import KeepAges
from cablestore.store.options import system_clock_ms
from cablestore.store.store import CableStore


@dataclass(frozen=True, slots=True)
class MaintenancePlan:
    """Settings of maintenance."""

    backup: BackupPlan | None = None
    ages: KeepAges = field(default_factory=KeepAges)


class Maintenance:
    """Maintenance of an open store during an `async with`."""

    def __init__(self, store: CableStore, plan: MaintenancePlan, *, clock: Callable[[], int] = system_clock_ms) -> None:
        self._backups = BackupSchedule(store, clock=clock)
        self._retention = Retention(store, clock=clock)
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics = MaintenanceMetrics(lambda: self.backup_state, lambda: self._retention.removed)
        self.change(plan)

    @property
    def backup_state(self) -> BackupState:
        """State of the regular backups. It may be read in any thread."""
        return self._backups.state

    def change(self, plan: MaintenancePlan) -> None:
        """Replace the plan. A running backup continues with the old plan, and a running removal ends after its step."""
        self._backups.change(plan.backup)
        self._retention.change(plan.ages)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(part.run()) for part in (self._backups, self._retention)]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """End the tasks: stop a running backup, and complete the current step of a removal."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
