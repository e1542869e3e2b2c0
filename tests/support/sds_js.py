"""Members of a causal log played by the npm package @waku/sds on Node.js, each in a process of its own.

`npm install @waku/sds@0.0.8` in some folder, and name its `node_modules` in CABLESTORE_NODE_MODULES. Its faults,
which tests with it meet:

* A message's id is the SHA-256 of its content alone: the same content twice, by anybody, is one message; from somebody else
  it lists itself as its dependency.
* A filter of another length than 18,752 bytes loses the whole message, with a RangeError in `sds:error-task`. Unset is fine.
* A dependency counts as met when the message waits itself, so a dependent may be reported as delivered before it.
* Ephemeral messages are dropped without an event; duplicates are reported again; a sync message without history or repair
  requests is not sent.
* A request for repair is sent once only, and given up when somebody else asks: what is lost with it comes only when the
  application fetches what `sweep` calls missing, from a store, as Waku's SDK does.
* Its log is ordered by time and `localeCompare` of ids; its filter never rolls over: at 20,000 ids 5 % of others seem to be in.
* RepairRequestQueued and RepairResponseQueued are reported under these names instead of their values.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest
from folders import SUPPORT
from sds_messages import unhex
from waiting import LIMIT_S

from cablestore.sds.bloom import FilterParameters
from cablestore.sds.message import HistoryEntry, MessageKind, SdsMessage
from cablestore.sds.repair import RepairParameters

DRIVER = SUPPORT / "sds_peer.mjs"
KINDS = {
    "ContentMessage": MessageKind.CONTENT,
    "SyncMessage": MessageKind.SYNC,
    "EphemeralMessage": MessageKind.EPHEMERAL,
}


def node_modules() -> str:
    """Return the folder with the package; skips the test where there is none, or no Node.js."""
    if shutil.which("node") is None:
        pytest.skip("there is no Node.js")
    modules = os.environ.get("CABLESTORE_NODE_MODULES")
    if not modules or not (Path(modules) / "@waku" / "sds").is_dir():
        pytest.skip("CABLESTORE_NODE_MODULES names no folder with @waku/sds: npm install it there")
    return modules


class Answer(NamedTuple):
    """Result of a command: its value, the bytes to broadcast, and the package's events, (name, detail) each."""

    value: Any
    out: list[bytes]
    events: list[tuple[str, Any]]

    def told(self, name: str) -> list[Any]:
        """Return the details of the events of this name."""
        return [detail for each, detail in self.events if each == name]


class State(NamedTuple):
    """State of a member: `history` in its own order, times of repairs in milliseconds of its clock."""

    lamport_ms: int
    history: list[tuple[str, int]]
    outgoing: list[str]
    possible_acks: dict[str, int]
    incoming: list[str]
    filter: bytes
    requests: list[tuple[str, int, bool]]
    responses: list[tuple[str, int]]


class JsError(AssertionError):
    """Error that the package or the driver raised; the message has the stack."""


class JsPeer:
    """Process with one member. Bytes go in and come out as they are on the wire; nothing is sent anywhere."""

    def __init__(self) -> None:
        environment = {**os.environ, "CABLESTORE_NODE_MODULES": node_modules()}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            ["node", str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def do(self, op: str, **more: Any) -> Answer:
        """Give one command. Raises JsError where it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **more}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise JsError(f"the process ended: {self._errors.read().decode()}")
        answer = json.loads(line)
        if "error" in answer:
            raise JsError(answer["error"])
        out = [bytes.fromhex(each) for each in answer["out"]]
        return Answer(answer["value"], out, [(name, detail) for name, detail in answer["events"]])

    # --- a member ---

    def join(
        self,
        channel_id: str,
        sender_id: str,
        *,
        history: int = 200,
        acks: int = 2,
        lost_after_ms: int | None = None,
        repair: RepairParameters | None = None,
    ) -> None:
        """Become this member. `history` and `acks` are how long a causal history is, and how many filters acknowledge.

        Without `repair` it repairs with its own defaults.
        """
        options: dict[str, Any] = {"causalHistorySize": history, "possibleAcksThreshold": acks}
        if lost_after_ms is not None:
            options["timeoutForLostMessagesMs"] = lost_after_ms
        if repair is not None:
            options["repairConfig"] = {
                "tMin": repair.t_min_ms,
                "tMax": repair.t_max_ms,
                "numResponseGroups": repair.groups,
            }
        self.do("init", channel_id=channel_id, sender_id=sender_id, options=options)

    def clock(self, now_ms: int) -> None:
        """Stop its clock at this time; before it joins, so that its Lamport time begins there."""
        self.do("clock", now_ms=now_ms)

    def send(self, content: bytes, hint: bytes | None = None) -> Answer:
        """Send content, or send it again while it is not acknowledged. `hint` is written into later histories."""
        return self.do("send", content=content.hex(), hint=hint and hint.hex())

    def ephemeral(self, content: bytes) -> Answer:
        """Send content that nobody keeps."""
        return self.do("ephemeral", content=content.hex())

    def receive(self, data: bytes, hint: bytes | None = None) -> Answer:
        """Take a message; the value is its kind there, None for bytes that it cannot read."""
        return self.do("recv", data=data.hex(), hint=hint and hint.hex())

    def sync(self) -> Answer:
        """Send a sync message; the value tells whether there was anything to say."""
        return self.do("sync")

    def sweep(self, *, resend: bool = False) -> Answer:
        """Deliver what can be, repair what is due, and with `resend` send again what is not acknowledged.

        The value has the entries that are `missing`, and the ids `unacknowledged`, `possibly_acknowledged`, `repaired`.
        """
        return self.do("sweep", resend=resend)

    def state(self) -> State:
        """Return what it has."""
        found = self.do("state").value
        return State(
            int(found["lamport"]),
            [(message_id, int(lamport)) for message_id, lamport in found["history"]],
            found["outgoing"],
            found["possible_acks"],
            found["incoming"],
            bytes.fromhex(found["filter"]),
            [(message_id, at_ms, is_sent) for message_id, at_ms, is_sent in found["requests"]],
            [(message_id, at_ms) for message_id, at_ms in found["responses"]],
        )

    # --- formats ---

    def decode(self, data: bytes) -> tuple[MessageKind, SdsMessage] | None:
        """Read a message; None where it cannot."""
        found = self.do("decode", data=data.hex()).value
        if found is None:
            return None
        message = SdsMessage(
            found["message_id"],
            found["channel_id"],
            found["sender_id"],
            int(found["lamport"]) if "lamport" in found else None,
            _entries_of(found["causal_history"]),
            unhex(found.get("bloom")),
            _entries_of(found["repair_request"]),
            unhex(found.get("content")),
        )
        return KINDS[found["kind"]], message

    def encode(self, message: SdsMessage) -> bytes:
        """Write a message."""
        known = {
            "message_id": message.message_id,
            "channel_id": message.channel_id,
            "sender_id": message.sender_id,
            "lamport": None if message.lamport_ms is None else str(message.lamport_ms),
            "causal_history": _entries_as_json(message.causal_history),
            "bloom": None if message.bloom_filter is None else message.bloom_filter.hex(),
            "repair_request": _entries_as_json(message.repair_request),
            "content": None if message.content is None else message.content.hex(),
        }
        return bytes.fromhex(self.do("encode", message=known).value)

    def bloom(self, ids: list[str], parameters: FilterParameters) -> bytes:
        """The bytes of a filter with these ids."""
        known = {"capacity": parameters.capacity, "error": parameters.error}
        return bytes.fromhex(self.do("bloom", ids=ids, **known).value)

    def lookup(self, data: bytes, ids: list[str], parameters: FilterParameters) -> list[bool]:
        """Return which of these ids seem to be in a filter of these bytes."""
        known = {"capacity": parameters.capacity, "error": parameters.error}
        found: list[bool] = self.do("lookup", data=data.hex(), ids=ids, **known).value
        return found

    def contains(self, ids: list[str]) -> list[bool]:
        """Return which of these ids seem to be in the member's own filter."""
        found: list[bool] = self.do("contains", ids=ids).value
        return found

    def positions(self, ids: list[str], parameters: FilterParameters) -> list[tuple[int, ...]]:
        """Return the bits that each of these ids sets."""
        found = self.do("hash", texts=ids, count=parameters.hashes, bits=parameters.bits).value
        return [tuple(each) for each in found]

    def repair_times(
        self, rows: list[tuple[str, str, str]], parameters: RepairParameters
    ) -> list[tuple[int, int, int, bool]]:
        """Return of each (participant, sender, message): hash, delay of a request, of a response, if in its group."""
        found = self.do(
            "repair_times",
            rows=rows,
            t_min_ms=parameters.t_min_ms,
            t_max_ms=parameters.t_max_ms,
            groups=parameters.groups,
        ).value
        return [(int(each["hash"]), each["request_ms"], each["response_ms"], each["in_group"]) for each in found]


def _entries_of(found: list[dict[str, str]]) -> tuple[HistoryEntry, ...]:
    return tuple(
        HistoryEntry(each["message_id"], unhex(each.get("retrieval_hint")), each.get("sender_id")) for each in found
    )


def _entries_as_json(entries: tuple[HistoryEntry, ...]) -> list[dict[str, str | None]]:
    return [
        {
            "message_id": entry.message_id,
            "retrieval_hint": None if entry.retrieval_hint is None else entry.retrieval_hint.hex(),
            "sender_id": entry.sender_id,
        }
        for entry in entries
    ]
