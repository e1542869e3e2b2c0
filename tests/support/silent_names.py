"""A separate network with a name server that never answers, for tests that run as root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from serving import environment
from waiting import LIMIT_S, wait_until

HOSTS: Final = """\
127.0.0.1 localhost
127.0.0.1 good.example
2001:db8::66 two.example
127.0.0.1 two.example
"""
"""`two.example` has an address that never answers, and one that does."""
_RESOLVER: Final = "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n"
_SILENT_SERVER: Final = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("bound", flush=True)
while True:
    print(server.recv(512), flush=True)
"""
_WITHOUT_UVLOOP: Final = "import sys; sys.modules['uvloop'] = None; from cablestore.__main__ import main; main()"


def _question(host: str) -> str:
    """Return the form of a name in a query that Python prints."""
    return repr(b"".join(bytes([len(part)]) + part.encode() for part in host.split(".")))[2:-1]


class Started:
    """Process in the network, with its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until(self, text: str) -> None:
        """Wait for a string in the output."""
        wait_until(lambda: text in self.output, lambda: self.output)

    def ends(self, number: int | None = None) -> int:
        """Wait for its end, after a signal. A look-up takes longer than the limit."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(LIMIT_S / 4)


class SilentNames:
    """Network in which processes are started."""

    def __init__(self, name: str, folder: Path) -> None:
        self._inside: Final = ["ip", "netns", "exec", name]
        self._folder = folder
        self._started: list[Started] = []

    def start(self, *arguments: object, has_uvloop: bool = True) -> Started:
        """Start a command of cablestore."""
        code = ["-m", "cablestore"] if has_uvloop else ["-c", _WITHOUT_UVLOOP]
        return self._run(*code, *map(str, arguments))

    def serve_names(self) -> None:
        """Start the name server."""
        self._names = self._run("-c", _SILENT_SERVER)
        self._names.until("bound")

    def until_asked(self, host: str) -> None:
        """Wait until the name server gets a query for a host."""
        self._names.until(_question(host))

    def _run(self, *arguments: str) -> Started:
        output = self._folder / f"output{len(self._started)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*self._inside, sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(),
            )
        self._started.append(Started(process, output))
        return self._started[-1]

    def end(self) -> None:
        for started in self._started:
            if started.process.poll() is None:
                started.process.send_signal(signal.SIGKILL)
            started.process.wait(LIMIT_S)


@contextmanager
def silent_names(folder: Path) -> Iterator[SilentNames]:
    """Create the network. Skip the test if that is not permitted."""
    name = f"cablestore-{os.getpid()}"
    files = Path("/etc/netns") / name
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip")
    if subprocess.run(["ip", "netns", "add", name], check=False).returncode:
        pytest.skip("needs network namespaces")
    network = SilentNames(name, folder)
    try:
        files.mkdir(parents=True)
        (files / "resolv.conf").write_text(_RESOLVER)
        (files / "hosts").write_text(HOSTS)
        (files / "nsswitch.conf").write_text("hosts: files dns\n")
        for command in (
            "link set lo up",
            "link add d0 type veth peer name d1",
            "link set d0 up",
            "link set d1 up",
            "addr add 2001:db8::1/64 dev d0 nodad",
            "neigh add 2001:db8::66 lladdr 02:00:00:00:00:66 dev d0",
        ):
            subprocess.run(["ip", "-n", name, *command.split()], check=True)
        network.serve_names()
        yield network
    finally:
        network.end()
        subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(files, ignore_errors=True)
