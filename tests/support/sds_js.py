"""Members of a causal log that run the npm package @waku/sds on Node.js, each in a separate process.

Run `npm install @waku/sds@0.0.8` in a folder, and set CABLESTORE_NODE_MODULES to its `node_modules`. The tests encounter
these faults of the package:

* A message's id is the SHA-256 of its content only. The same content twice, by any members, is one message. From
  another member it lists itself as its dependency.
* With a filter of another length than 18,752 bytes the whole message is lost, with a RangeError in `sds:error-task`. A
  message without a filter is accepted.
* A dependency counts as met while it is waiting itself, so a dependent may be reported as delivered before it.
* Ephemeral messages are dropped without an event. Duplicates are reported again. A sync message without history or
  repair requests is not sent.
* A request for repair is sent only once, and cancelled if another member sends one. If it is lost, the message arrives
  only when the application fetches the `missing` messages of `sweep` from a store, as Waku's SDK does.
* Its log is ordered by time and `localeCompare` of ids. Its filter never rolls over: with 20,000 ids, 5 % of others
  seem to be in it.
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
    """Return the folder with the package. Skip the test if it or Node.js is missing."""
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

    def events_of(self, name: str) -> list[Any]:
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
    """Error that the package or the driver raised. The message has the stack."""


class JsPeer:
    """Process with one member. Input and output are bytes in the wire format; nothing is sent elsewhere."""

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
        """Run one command. Raises JsError if it fails."""
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
        """Become this member.

        `history` is the length of a causal history, `acks` the number of filters that acknowledge. Without `repair` it
        repairs with its own defaults.
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
        """Stop its clock at this time. Called before it joins, its Lamport time begins there."""
        self.do("clock", now_ms=now_ms)

    def send(self, content: bytes, hint: bytes | None = None) -> Answer:
        """Send content, or send it again while it is unacknowledged. `hint` is written into later histories."""
        return self.do("send", content=content.hex(), hint=hint and hint.hex())

    def ephemeral(self, content: bytes) -> Answer:
        """Send content that is not kept."""
        return self.do("ephemeral", content=content.hex())

    def receive(self, data: bytes, hint: bytes | None = None) -> Answer:
        """Receive a message. The value is its kind there, None for undecodable bytes."""
        return self.do("recv", data=data.hex(), hint=hint and hint.hex())

    def sync(self) -> Answer:
        """Send a sync message. The value is True if it was sent."""
        return self.do("sync")

    def sweep(self, *, resend: bool = False) -> Answer:
        """Deliver complete messages, repair due ones, and with `resend` send unacknowledged ones again.

        The value has the entries that are `missing`, and the ids `unacknowledged`, `possibly_acknowledged`, `repaired`.
        """
        return self.do("sweep", resend=resend)

    def state(self) -> State:
        """Return its state."""
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
        """Decode a message, None if it is invalid."""
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
        """Encode a message."""
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
        """Return the bytes of a filter with these ids."""
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
        """Return results for each (participant, sender, message).

        They are the hash, the delay of a request, the delay of a response, and whether it is in the response group.
        """
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
