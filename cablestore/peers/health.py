"""Health of a process that serves a store, which its status pages report from start to end.

Use `Health.is_alive` in a supervisor that restarts the process. It is False only if a restart may help.
Use `Health.is_ready` in clients and monitoring. It is True only if the process does all its work.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from cablestore import __version__


class State(StrEnum):
    """State of a process that serves a store."""

    STARTING = "starting"
    REBUILDING = "rebuilding"
    OK = "ok"
    DEGRADED = "degraded"
    """Some work fails, and a restart would not help."""
    FAILING = "failing"
    """Some work fails, and a restart may help."""
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Health:
    """A state, the reason for it or "", and details for the JSON of the pages."""

    state: State
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_alive(self) -> bool:
        """False if a restart of the process may help."""
        return self.state is not State.FAILING

    @property
    def is_ready(self) -> bool:
        """True if the process does all its work."""
        return self.state is State.OK

    @property
    def fields(self) -> dict[str, Any]:
        """The content of the status pages."""
        return {"status": str(self.state), **({"reason": self.reason} if self.reason else {}), **self.details}


class Status(ABC):
    """Content of the status pages, called in the threads of the pages. `registry` contains the metrics."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        ready = Gauge("cablestore_ready", "1 if /readyz returns status 200, otherwise 0", registry=self.registry)
        ready.set_function(lambda: float(self.health().is_ready))
        build = Gauge("cablestore_build_info", "Versions in labels", ["version", "python"], registry=self.registry)
        build.labels(__version__, "{}.{}.{}".format(*sys.version_info)).set(1)
        ProcessCollector(registry=self.registry)

    @abstractmethod
    def health(self) -> Health:
        """Return the present health."""


class PhaseStatus(Status):
    """Status of a process whose node does not run yet, or no longer."""

    def __init__(self, health: Callable[[], Health]) -> None:
        super().__init__()
        self._health = health

    def health(self) -> Health:
        """Return the present health."""
        return self._health()
