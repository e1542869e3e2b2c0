"""Protection of forked children from objects that belong to their parent process.

A fork copies memory and descriptors, but not threads. In the child, a database would write to its parent's files, and a
call would wait for a missing thread. A lock file would stay locked after its owner has ended. Therefore each child that
Python forks first changes these objects:

* each bound object raises CableStoreError on every use, and its `close` and the end of its `with` do nothing;
* its C++ objects are never destroyed, because their destructors write files and wait for threads;
* descriptors of locks and sockets are redirected to /dev/null. Their numbers stay in use, so closing them is harmless.

All this happens in the child, so calls in the parent have no extra cost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import WeakSet

from cablestore.errors import CableStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ancestors = 0
"""Number of forks between this process and the first process that imported this module."""

_process_id = os.getpid()
_bound: Final[WeakSet[ProcessBound]] = WeakSet()
_descriptors: Final[set[int]] = set()
_changing: Final = threading.RLock()
"""Held during a fork, and while a descriptor is opened or closed, so that all descriptors of a child are listed."""


class ProcessBound:
    """Base class of objects that only the process that created them may use: see `bind`."""

    __slots__ = ()

    def _bound_parts(self) -> Iterable[ProcessBound]:
        """Return the bound objects that this object contains."""
        return ()

    def _native_parts(self) -> Iterable[object]:
        """Return objects that a child must not destroy."""
        return ()

    def _sockets(self) -> Iterable[int]:
        """Return the descriptors that a child must not keep open."""
        return ()


def bind(thing: ProcessBound) -> None:
    """Make every use of an object raise CableStoreError in children that are forked later."""
    _bound.add(thing)


def open_released(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file or folder whose descriptor children release. Close it with `close_released`."""
    with _changing:
        descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
        _descriptors.add(descriptor)
    return descriptor


def close_released(descriptor: int) -> None:
    """Close a descriptor that `open_released` returned."""
    with _changing:
        _descriptors.discard(descriptor)
        os.close(descriptor)


@contextmanager
def released_in_child(descriptor: int) -> Iterator[None]:
    """Let children release a descriptor that is open during the `with`.

    Otherwise, a child that exits would write its copy of the file's buffer to the parent's file.
    """
    _descriptors.add(descriptor)
    try:
        yield
    finally:
        _descriptors.discard(descriptor)


def _begin_child() -> None:
    global _process_id, ancestors
    owner, _process_id, ancestors = _process_id, os.getpid(), ancestors + 1
    bound = list(_bound)
    _bound.clear()
    try:
        _release({*_descriptors, *(each for thing in bound for each in thing._sockets())})  # noqa: SLF001 - of the base
        _descriptors.clear()
        for thing in bound:
            _leave(thing, owner)
    finally:
        _changing.release()


def _release(descriptors: set[int]) -> None:
    if not descriptors:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _leave(thing: ProcessBound, owner: int) -> None:
    """Protect an object in a child of process `owner`: never destroy its native parts, and make all uses raise errors."""
    for bound in thing._bound_parts():  # noqa: SLF001 - of the base
        _leave(bound, owner)
    native = list(thing._native_parts())  # noqa: SLF001 - of the base
    if native:
        import ctypes  # noqa: PLC0415 - only children need it

        for part in native:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))  # never released, not even at exit
    object.__setattr__(thing, "__class__", _refusing(type(thing), owner))


def _refusing(kind: type, owner: int) -> type:
    """Return a subclass whose objects raise CableStoreError on every use besides closing."""

    def get(self: object, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            return object.__getattribute__(self, name)
        if name == "close":
            return _do_nothing_soon if iscoroutinefunction(getattr(kind, name)) else _do_nothing
        return refuse()

    def refuse(*_: object) -> NoReturn:
        raise CableStoreError(
            f"this {kind.__name__} was opened by process {owner}, of which process {os.getpid()} is a fork. A child "
            "process cannot use objects that its parent opened. Open the object after the fork. Open a store in one "
            "process at a time"
        )

    members = {"__slots__": (), "__getattribute__": get, "__exit__": _do_nothing, "__aexit__": _do_nothing_soon}
    members |= dict.fromkeys(("__aenter__", "__enter__", "__setattr__"), refuse)
    return type(kind)(kind.__name__, (kind,), members)


def _do_nothing(*_: object) -> None:
    pass


async def _do_nothing_soon(*_: object) -> None:
    pass


os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_begin_child)
