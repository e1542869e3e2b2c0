"""Listening sockets: they resume accepting after a shortage of descriptors, and bind all addresses of a host."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import closing

import pytest
from by_hand import on_standing_loop
from clock import pass_time
from peering import HOST, until

from cablestore.peers.accepting import AcceptingSockets, bind


class FailingSocket(socket.socket):
    """Listening socket that fails to accept for a number of times, as in a process without free descriptors."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.bind((HOST, 0))
        self.listen()
        self.setblocking(False)
        self.number, self.failures = number, 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(self.number, os.strerror(self.number))
        return super().accept()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
@on_standing_loop
async def test_accepting_resumes_a_second_after_each_shortage(number: int) -> None:
    listening, accepted, errors = FailingSocket(number), list[socket.socket](), list[OSError]()
    listening.failures = 2
    sockets = AcceptingSockets(asyncio.get_running_loop(), [listening], accepted.append, errors.append)
    with socket.create_connection(listening.getsockname()):
        await until(lambda: errors)
        await pass_time(0.9)
        assert (len(errors), accepted) == (1, [])
        await pass_time(0.2)
        await until(lambda: len(errors) == 2)
        await pass_time(1.1)
        await until(lambda: accepted)
        assert [error.errno for error in errors] == [number, number]
        with accepted[0] as connection:
            assert not connection.getblocking()
    listening.failures = 1
    with socket.create_connection(listening.getsockname()):
        await until(lambda: len(errors) == 3)
        sockets.close()
        assert listening.fileno() == -1
        await pass_time(2.0)  # the pause ended with the sockets
    assert len(accepted) == 1


@on_standing_loop
async def test_a_peer_that_is_gone_causes_no_pause() -> None:
    listening, accepted, errors = FailingSocket(errno.ECONNABORTED), list[socket.socket](), list[OSError]()
    listening.failures = 1
    sockets = AcceptingSockets(asyncio.get_running_loop(), [listening], accepted.append, errors.append)
    with socket.create_connection(listening.getsockname()):
        await until(lambda: accepted)
        accepted[0].close()
    sockets.close()
    assert errors == []


def test_addresses_of_other_machines_are_left_out_unless_there_is_no_other() -> None:
    elsewhere = "192.0.2.1"
    [listening] = bind([elsewhere, HOST, HOST], 0)
    with closing(listening):
        assert listening.getsockname()[0] == HOST
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert not listening.getblocking()
        socket.create_connection(listening.getsockname()).close()
    with pytest.raises(OSError, match="Cannot assign") as found:
        bind([elsewhere], 0)
    assert found.value.errno == errno.EADDRNOTAVAIL


def test_sockets_are_closed_if_one_address_is_in_use() -> None:
    with socket.create_server((HOST, 0)) as used:
        port = used.getsockname()[1]
        with pytest.raises(OSError, match="in use") as found:
            bind(["127.0.0.2", HOST], port)
        assert found.value.errno == errno.EADDRINUSE
        [listening] = bind(["127.0.0.2"], port)
        listening.close()
