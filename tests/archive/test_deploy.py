"""The units in `deploy`: systemd accepts them, and processes run with their command lines."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from archive_network import CABAL_KEY, HERE, digest, made_store, run_json
from archives import some_weeks
from documents import blocks
from folders import ROOT
from serving import cablestore, environment
from waiting import LIMIT_S, wait_until

from cablestore import CableStore

DEPLOY = ROOT / "deploy"
UNITS = sorted(path.name for path in DEPLOY.glob("*.service"))
INSTALLED = "/opt/cablestore/bin/cablestore"
WEEKS = 2


def settings(unit: str) -> list[tuple[str, str]]:
    lines = (line for line in (DEPLOY / unit).read_text().splitlines() if line and line[0] not in "#[")
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def setting(unit: str, name: str) -> str:
    [value] = [value for key, value in settings(unit) if key == name]
    return value


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """The programs are at the paths of the units, as `verify` reports a missing one. It must report nothing else."""
    program = tmp_path / "cablestore"
    program.symlink_to(sys.executable)
    for path in DEPLOY.iterdir():
        if path.suffix in (".service", ".timer"):
            (tmp_path / path.name).write_text(path.read_text().replace(INSTALLED, str(program)))
    units = sorted(str(path) for path in tmp_path.iterdir() if path != program)
    assert len(units) == len(UNITS) + 1
    found = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
    broken = tmp_path / "cablestore.service"
    broken.write_text(broken.read_text().replace("ExecStart=", "ExecStart=no/path "))
    found = subprocess.run(["systemd-analyze", "verify", str(broken)], capture_output=True, text=True, check=False)
    assert found.returncode or found.stderr, "systemd-analyze accepts any unit"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_units_of_the_documents(tmp_path: Path) -> None:
    """Commands that stop and start another unit run as root: `+`."""
    texts = blocks("docs/how-to/reindex.md", "systemd")
    program = tmp_path / "cablestore"
    program.symlink_to(sys.executable)
    units = []
    for text in texts:
        path = Path(text.splitlines()[0].removeprefix("# "))
        assert path.parent == Path("/etc/systemd/system")
        units.append(tmp_path / path.name)
        units[-1].write_text(text.replace("/opt/chat/.venv/bin/cablestore", str(program)))
    assert [unit.suffix for unit in units] == [".service", ".timer"]
    found = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
    commands = [line for text in texts for line in text.splitlines() if "systemctl" in line]
    assert len(commands) == 2
    assert all("=+/usr/bin/systemctl " in line for line in commands)


def test_invalid_settings_are_not_retried_and_a_hanging_serve_is_restarted() -> None:
    found = dict(settings("cablestore.service"))
    assert (found["RestartPreventExitStatus"], found["WatchdogSec"], found["TimeoutStartSec"]) == (
        "2",
        "1min",
        "infinity",
    )
    assert dict(settings("cablestore-archives.service"))["RestartPreventExitStatus"] == "2"
    watched = [unit for unit in UNITS if "WatchdogSec" in dict(settings(unit))]
    assert watched == ["cablestore.service"], "the others do not notify the watchdog"


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_restarts_on_failure_and_is_confined(unit: str) -> None:
    found = dict(settings(unit))
    assert found["Type"] == ("oneshot" if unit == "cablestore-fetch.service" else "notify")
    assert (found["Restart"], found["User"], found["StateDirectory"]) == ("on-failure", "cablestore", "cablestore")
    confined = dict(settings("cablestore.service"))
    hardening = [name for name in confined if name.startswith(("Protect", "Private", "Restrict", "System", "NoNew"))]
    assert len(hardening) > 15
    assert {name: found.get(name) for name in hardening} == {name: confined[name] for name in hardening}


class Machine:
    """Substitute for systemd below a folder with the paths of the units: variables, credentials and notification."""

    def __init__(self, root: Path, **variables: str) -> None:
        self.root = root
        self.variables = variables
        self.places = {INSTALLED: f"{sys.executable} -m cablestore", "/var/lib": f"{root}/var", "/etc": f"{root}/etc"}
        for folder in ("var/cablestore", "etc/cablestore", "credentials"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "credentials" / "cabal-key").write_text(CABAL_KEY)

    @property
    def store(self) -> Path:
        return self.root / "var/cablestore/store"

    @property
    def archives(self) -> Path:
        return self.root / "var/cablestore/archives"

    def placed(self, text: str) -> str:
        for path, here in {**self.places, "%d": f"{self.root}/credentials", **self.variables}.items():
            text = text.replace(path, here)
        return text

    def environment(self, unit: str) -> dict[str, str]:
        found = environment()
        for name, value in settings(unit):
            if name == "EnvironmentFile":
                lines = (self.root / value.lstrip("/")).read_text().splitlines()
                found |= dict(line.split("=", 1) for line in lines if line and line[0] != "#")
            elif name == "Environment":
                found |= dict(self.placed(each).split("=", 1) for each in shlex.split(value))
        return found

    def command(self, unit: str) -> list[str]:
        known = self.environment(unit)
        words = shlex.split(self.placed(setting(unit, "ExecStart")))
        return [re.sub(r"\$\{(\w+)\}", lambda match: known[match[1]], word) for word in words]

    @contextmanager
    def started(self, unit: str) -> Iterator[subprocess.Popen[str]]:
        """Start a unit of Type=notify, yield when it is ready, and check that SIGTERM ends it with status 0."""
        assert setting(unit, "Type") == "notify"
        address = str(self.root / f"{unit}.n")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(os.path.relpath(address))  # the maximum path length of a socket is short
            notified.settimeout(1.0)
            process = subprocess.Popen(
                self.command(unit),
                env=self.environment(unit) | {"NOTIFY_SOCKET": os.path.relpath(address)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                wait_until(lambda: process.poll() is not None or is_ready(notified), "the unit is ready")
                assert process.poll() is None, process.communicate()
                yield process
            finally:
                process.terminate()
                said = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, said


def is_ready(notified: socket.socket) -> bool:
    with suppress(TimeoutError):
        return notified.recv(100).startswith(b"READY=1\n")
    return False


def test_a_reload_reads_the_settings_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    machine, unit = Machine(tmp_path / "m"), "cablestore.service"
    file = machine.root / "etc/cablestore/serve.toml"
    lines = f'[serve]\nstore = "{machine.store}"\ncreate = true\nlisten = ["{HERE}:0"]\n'
    file.write_text(lines)
    with machine.started(unit) as serve:
        file.write_text(f"{lines}max-peers = 7\n")
        reload = setting(unit, "ExecReload").replace("$MAINPID", str(serve.pid))
        subprocess.run(shlex.split(reload), check=True)
        assert serve.stderr is not None
        assert any('"settings reloaded"' in line and '"max-peers"' in line for line in serve.stderr)


@pytest.mark.thorough
def test_the_units_of_a_control_node_and_of_a_member_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control node serves, creates, seeds and announces; the member serves, fetches and seeds."""
    monkeypatch.chdir(tmp_path)
    at_any_port = {"0.0.0.0:9025": f"{HERE}:0"}
    control, member = Machine(tmp_path / "c", **at_any_port), Machine(tmp_path / "m", **at_any_port)
    community = made_store(control.store, some_weeks(weeks=WEEKS))
    (control.root / "etc/cablestore/serve.toml").write_text(
        f'[serve]\nstore = "{control.store}"\nlisten = ["{HERE}:0"]\nfollow = false\n'
    )
    CableStore.open(member.store).close()
    of_member = ("--control", community, "--cabal-key", CABAL_KEY)
    with control.started("cablestore.service") as serve, control.started("cablestore-archives.service"):
        [now] = run_json("status", control.archives, *of_member, store=control.store)
        assert now["link"] == now["seeding"]
        example = re.sub("CONTROL=0{64}", f"CONTROL={community}", (DEPLOY / "archives.env").read_text())
        env = member.root / "etc/cablestore/archives.env"
        env.write_text(example.replace("192.0.2.7:9025", now["listening"]))
        assert serve.stdout is not None
        address = serve.stdout.readline().split()[-1]
        key = ("--channels", "cablestore-archives", "--cabal-key", CABAL_KEY)
        assert cablestore("sync", address, *key, store=member.store).returncode == 0
        fetch = "cablestore-fetch.service"
        done = subprocess.run(
            member.command(fetch), env=member.environment(fetch), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout.count("week of")) == (0, WEEKS), done.stderr
        with member.started("cablestore-seed.service"):
            [now] = run_json("status", member.archives, *of_member, store=member.store)
            assert (now["seeding"], now["missing"], now["is_newest"]) == (now["link"], 0, True)
    assert digest(member.store) == digest(control.store)
