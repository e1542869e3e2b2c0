"""Host name resolution: one look-up at a time, cached results, and a name server that does not answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence

import pytest
from forking import run_forked
from waiting import LIMIT_S

from cablestore import limits
from cablestore.resolution import RESOLVER, AddressInfo, Resolver, look_up


class NameServer:
    """Fake name server that returns `found` when it is allowed to answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.failure: OSError | None = None
        self.found = "192.0.2.1"
        self.now_s = 1_000.0

    def find(self, host: str) -> Sequence[AddressInfo]:
        self.asked.append(host)
        assert self.may_answer.wait(LIMIT_S)
        if self.failure is not None:
            raise self.failure
        return look_up(self.found)

    def resolver(self) -> Resolver:
        return Resolver(self.find, lambda: self.now_s)


async def texts(resolver: Resolver, host: str = "peer.example") -> list[str]:
    return await resolver.texts(host)


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7", "::1", "127.1", "fe80::1%lo"])
def test_an_address_is_not_looked_up(host: str) -> None:
    server = NameServer()
    found = asyncio.run(server.resolver().resolve(host, 13333))
    assert [info[4][1] for info in found] == [13333]
    number, *rest = socket.getaddrinfo(host, 13333, type=socket.SOCK_STREAM)[0][4]
    zone = ["", "%", str(rest[-1])] if "%" in host else [""]
    assert found[0][4] == (str(number) + "".join(zone), *rest)
    assert asyncio.run(server.resolver().texts(host)) == [host]
    assert not server.asked


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "\udcff", "a\0b"])
def test_an_impossible_name_raises_an_error(host: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        asyncio.run(Resolver().resolve(host, 1))


def test_concurrent_requests_for_a_host_share_one_look_up() -> None:
    server = NameServer()
    server.may_answer.clear()

    async def main() -> None:
        resolver = server.resolver()
        waiting = [asyncio.ensure_future(texts(resolver)) for _ in range(20)]
        others = [asyncio.ensure_future(texts(resolver, f"peer{number}.example")) for number in range(5)]
        await asyncio.sleep(0)
        waiting.pop().cancel()
        assert resolver.is_looking_up("peer.example")
        await asyncio.sleep(0)
        server.may_answer.set()
        for each in [*waiting, *others]:
            assert await each == ["192.0.2.1"]
        assert not resolver.is_looking_up("peer.example")

    asyncio.run(main())
    assert sorted(server.asked) == sorted(["peer.example", *(f"peer{number}.example" for number in range(5))])


def test_an_address_is_cached_until_it_is_old_or_doubted() -> None:
    """Tests `NAME_FRESH_S`."""
    server = NameServer()

    async def main() -> None:
        resolver = server.resolver()
        assert await texts(resolver) == ["192.0.2.1"]
        server.found = "192.0.2.2"
        server.now_s += limits.NAME_FRESH_S - 1
        assert await texts(resolver) == ["192.0.2.1"]
        server.now_s += 1
        assert await texts(resolver) == ["192.0.2.2"]
        server.found = "192.0.2.3"
        resolver.doubt("peer.example")
        resolver.doubt("unknown.example")
        assert await texts(resolver) == ["192.0.2.3"]

    asyncio.run(main())


@pytest.mark.parametrize("failure", [None, socket.gaierror(socket.EAI_AGAIN, "try again")], ids=["silent", "failing"])
def test_an_old_address_is_used_if_the_name_server_does_not_answer(failure: OSError | None) -> None:
    """Tests `NAME_PATIENCE_S`."""
    server = NameServer()

    async def main() -> None:
        resolver = server.resolver()
        assert await texts(resolver) == ["192.0.2.1"]
        resolver.doubt("peer.example")
        server.failure = failure
        if failure is None:
            server.may_answer.clear()
        assert await texts(resolver) == ["192.0.2.1"]
        server.may_answer.set()

    asyncio.run(main())


def test_a_removed_name_raises_an_error() -> None:
    server = NameServer()

    async def main() -> None:
        resolver = server.resolver()
        await texts(resolver)
        resolver.doubt("peer.example")
        server.failure = socket.gaierror(socket.EAI_NONAME, "not known")
        for _ in range(2):
            with pytest.raises(socket.gaierror):
                await texts(resolver)

    asyncio.run(main())
    assert len(server.asked) == 3


def test_the_number_of_cached_hosts_is_limited() -> None:
    server = NameServer()

    async def main() -> None:
        resolver = server.resolver()
        for number in range(limits.MAX_KNOWN_HOSTS + 1):
            await texts(resolver, f"peer{number}.example")
        server.asked.clear()
        for number in (1, limits.MAX_KNOWN_HOSTS, 0):
            await texts(resolver, f"peer{number}.example")
        assert server.asked == ["peer0.example"]

    asyncio.run(main())


def test_a_loop_can_end_during_a_look_up() -> None:
    server = NameServer()
    server.may_answer.clear()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(texts(server.resolver()), 0.01)

    asyncio.run(main())
    assert not server.may_answer.is_set()
    server.may_answer.set()


def test_a_forked_process_looks_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child process does not have the thread of a running look-up."""
    server = NameServer()
    server.may_answer.clear()
    monkeypatch.setattr(RESOLVER, "_find", server.find)

    def use() -> list[str]:
        server.may_answer.set()
        return asyncio.run(texts(RESOLVER, "forked.example"))

    async def main() -> str:
        waiting = asyncio.ensure_future(texts(RESOLVER, "forked.example"))
        await asyncio.sleep(0)
        assert RESOLVER.is_looking_up("forked.example")
        found = await asyncio.to_thread(run_forked, use)
        server.may_answer.set()
        assert str(await waiting) == found
        return found

    assert asyncio.run(main()) == "['192.0.2.1']"
