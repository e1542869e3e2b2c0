"""SIGHUP: `serve` reads its settings again, and a closed terminal ends it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from serving import HERE, KEY, Served, environment
from waiting import LIMIT_S, wait_until

from cablestore import CableStore

RELOADED = "settings reloaded"


def hang_up(served: Served) -> None:
    served.process.send_signal(signal.SIGHUP)


def test_peers_limits_and_the_log_level_are_changed_by_a_reload(tmp_path: Path, serving: Callable[..., Served]) -> None:
    one, two = (serving(tmp_path / name, "--create", "--listen", HERE, "--metrics", HERE) for name in "ab")
    file = tmp_path / "serve.toml"
    lines = f'[serve]\ncreate = true\nlisten = ["{HERE}"]\nmetrics = "{HERE}"\nlist-every = "1s"\n'
    file.write_text(f'{lines}connect = ["{one.address}"]\n')
    served = serving(tmp_path / "c", "--config", file)
    wait_until(lambda: one.metric("cablestore_peers") == 1)

    file.write_text(
        f'{lines}connect = ["{two.address}"]\nmax-peers = 1\nreconcile-every = "2m"\nlog-level = "warning"\n'
        f'cabal-key = "{KEY}"\nrelay = false\n'
    )
    hang_up(served)
    wait_until(lambda: two.metric("cablestore_peers") == 1)
    wait_until(lambda: one.metric("cablestore_peers") == 0)
    [said] = served.logged(RELOADED)
    assert said["changed"] == ["connect", "log-level", "max-peers", "reconcile-every"]
    assert said["needs_restart"] == ["cabal-key", "relay"]
    assert KEY not in str(served.logged())

    file.write_text(f'{lines}connect = []\nmax-peers = 1\nlog-level = "info"\n')
    hang_up(served)
    wait_until(lambda: two.metric("cablestore_peers") == 0)
    assert served.logged(RELOADED)[-1]["needs_restart"] == []  # the changed settings are restored
    assert served.stop() == 0


WRONG = {
    "[serve]\nmax-peers = 0\n": "invalid max-peers = 0: expected a whole number, at least 1",
    "[serve]\nmax-peers\n": "cannot read",
    "[serve]\nlisten = []\n": "missing address",
    "[serve]\nfavourite = 1\n": ": favourite. Known settings:",
    None: "No such file",
}
"""Invalid contents of a settings file, and the resulting log message."""


def test_an_invalid_file_does_not_change_the_settings(tmp_path: Path, serving: Callable[..., Served]) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(f'[serve]\nlisten = ["{HERE}"]\n')
    served = serving(tmp_path / "a", "--create", "--config", file)
    assert served.address
    reasons: list[str] = []

    def said() -> list[str]:
        return [line["reason"] for line in served.logged("cannot reload the settings: the old settings remain active")]

    for text, reason in WRONG.items():
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        reasons.append(reason)
        hang_up(served)
        wait_until(lambda: len(said()) == len(reasons))
        assert reason in said()[-1]
    assert served.process.poll() is None
    assert served.stop() == 0


def test_an_invitation_from_standard_input_is_kept_after_a_reload(
    tmp_path: Path, serving: Callable[..., Served]
) -> None:
    served = serving(
        tmp_path / "a", "--create", "--invitation", "-", "--listen", HERE, given=f"cable:{KEY}?peer=127.0.0.1:1"
    )
    assert served.address
    hang_up(served)
    wait_until(lambda: served.logged(RELOADED))
    assert served.logged(RELOADED, changed=[], needs_restart=[])
    assert served.stop() == 0


SERVE = [sys.executable, "-m", "cablestore", "serve", "--listen", HERE, "--json", "-s"]


@pytest.mark.parametrize("is_redirected", [False, True])
def test_a_closed_terminal_ends_serve_cleanly(tmp_path: Path, is_redirected: bool) -> None:
    """`serve` ends even if its streams are redirected, because the controlling terminal is gone."""
    CableStore.open(tmp_path / "store").close()
    log = tmp_path / "log"
    command = [*SERVE, str(tmp_path / "store")]
    if is_redirected:
        command = ["sh", "-c", 'exec "$@" >>log 2>&1 </dev/null', "sh", *command]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(program(command[0]), command, environment())
    wait_until((tmp_path / "store" / "control.sock").exists)
    if is_redirected:
        wait_until(lambda: '{"listening"' in log.read_text())
    else:
        seen = b""
        while b'{"listening"' not in seen:
            seen += os.read(terminal, 65536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not (tmp_path / "store" / "control.sock").exists()
    if is_redirected:
        assert "SIGHUP" in log.read_text()
        assert "stopped" in log.read_text()


def program(name: str) -> str:
    return name if "/" in name else f"/bin/{name}"


def test_serve_started_by_nohup_ignores_sighup(tmp_path: Path) -> None:
    store = tmp_path / "store"
    CableStore.open(store).close()
    command = ["nohup", *SERVE, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()) as process:
        wait_until((store / "control.sock").exists)
        assert process.stdout is not None
        assert b"listening" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
