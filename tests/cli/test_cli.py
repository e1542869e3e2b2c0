"""Command line as used by people and programs, with real processes and folders."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from in_process import Result, run_here
from people import ANN, raws
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, Identity
from cablestore.cli import cli
from cablestore.cli.commands import load_all
from cablestore.cli.demo import sample
from cablestore.cli.output import Output, safe, size
from cablestore.cli.read import histogram

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the test's store, in this process, with the exit status of a shell."""
    monkeypatch.setenv("CABLESTORE_STORE", str(tmp_path / "store"))

    def command(*arguments: str, stdin: str = "", expect: int = 0) -> Result:
        result = run_here(arguments, stdin)
        assert result.exit_code == expect, result.stdout + result.stderr
        assert "Traceback" not in result.stdout + result.stderr
        return result

    return command


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def shell(*arguments: str, store: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CABLESTORE_STORE": str(store)}
    command = [sys.executable, "-m", "cablestore", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=LIMIT_S, **options
    )


def test_the_main_commands_work_together(run: Run) -> None:
    assert "public key" in run("init").stdout
    run("name", "Ann")
    assert "joined default" in run("post", "default", "hello,", "world").stderr
    posted = lines(run("post", "default", "second", "--json"))[0]
    run("topic", "default", "all", "about", "nothing")
    assert [m["text"] for m in lines(run("log", "default", "--json"))] == ["hello, world", "second"]
    log = run("log", "default").stdout
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d  Ann  hello, world  [0-9a-f]{8}", log)
    [channel] = lines(run("channels", "--json"))
    assert (channel["channel"], channel["members"], channel["messages"]) == ("default", 1, 2)
    assert channel["topic"] == "all about nothing"
    assert [user["name"] for user in lines(run("users", "--json"))] == ["Ann"]
    assert [user["name"] for user in lines(run("users", "--channel", "default", "--json"))] == ["Ann"]
    shown = lines(run("show", posted["hash"][:10], "--json"))[0]
    assert shown["hash"] == posted["hash"]
    assert len(shown["links"]) == 1
    assert "Text(channel='default', text='second')" in run("show", posted["hash"]).stdout
    run("delete", posted["hash"][:10])
    assert [m["text"] for m in lines(run("log", "default", "--json"))] == ["hello, world"]
    [deleted] = lines(run("show", posted["hash"], "--json"))
    assert (deleted["name"], deleted["type"], deleted["timestamp_ms"]) == ("Ann", "text", posted["timestamp_ms"])
    assert deleted["deleted_at_ms"] > deleted["timestamp_ms"]
    assert lines(run("show", deleted["deleted_by"], "--json"))[0]["type"] == "delete"
    assert run("show", posted["hash"][:10]).stdout.startswith("deleted by Ann, its author, at ")
    run("leave", "default")
    assert lines(run("users", "--channel", "default", "--json")) == []
    run("join", "default")
    stats = lines(run("stats", "--json"))[0]
    assert stats["posts"]["text"] == 1
    assert stats["views"]["messages"]["rows"] == 2
    assert "█" in run("stats").stdout
    assert "no problems found" in run("check", "--signatures").stdout
    before = lines(run("dump", "--digest", "--json"))[0]
    assert lines(run("rebuild", "--json"))[0]["lost"] == 0
    assert lines(run("dump", "--digest", "--json"))[0] == before
    assert len(lines(run("dump", "--json"))) == len(run("dump").stdout.splitlines())
    assert lines(run("prune", "--keep", "0", "--json")) == [{"discarded": 1}]
    run("compact")
    run("identity")


def test_texts_are_read_from_standard_input(run: Run) -> None:
    run("init")
    run("post", "default", stdin="from\na pipe\n")
    assert [m["text"] for m in lines(run("log", "default", "--json"))] == ["from\na pipe"]


def test_the_first_post_joins_and_later_ones_do_not(run: Run) -> None:
    run("init")
    for word in ("one", "two"):
        run("post", "default", word)
    assert lines(run("stats", "--json"))[0]["posts"] == {"text": 2, "join": 1}


def test_a_new_name_keeps_the_other_fields_of_the_info(run: Run, tmp_path: Path) -> None:
    run("init")
    with CableStore.open(tmp_path / "store") as store:
        store.set_info(name="old", accept_role=False, others={"colour": b"green"})
    first, again = (lines(run("name", "new", "--json"))[0] for _ in range(2))
    assert first == again  # an unchanged name is not written
    with CableStore.open(tmp_path / "store") as store:
        assert store.stats().posts == {"info": 2}
        info = store.user(store.identity.public_key).info
        assert (info.name, info.accepts_role, dict(info.pairs)["colour"]) == ("new", False, b"green")


def test_log_can_be_filtered_sorted_and_limited(run: Run, tmp_path: Path) -> None:
    run("init", "--dialect", "draft8")
    run("import-irc", str(sample()))

    def texts(*options: str) -> list[str]:
        return [m["text"] for m in lines(run("log", "harbour", "--json", *options))]

    everything = texts("-n", "1000")
    assert len(everything) == 64
    assert texts("-n", "3") == everything[-3:]
    assert texts("-n", "3", "--oldest") == everything[:3]
    assert texts("-n", "1000", "--causal") == everything
    assert texts("-n", "1000", "--after", "2024-05-04T00:00Z", "--before", "2024-05-05T00:00+00:00") == everything[-26:]
    assert texts("--after", "1h") == []
    assert texts("-n", "2", "--causal") == everything[-2:]
    assert texts("-n", "2", "--causal", "--oldest") == everything[:2]
    assert "no messages" in run("log", "nowhere").stderr


def test_an_import_reports_its_counts_and_does_not_add_duplicates(run: Run) -> None:
    first = lines(run("import-irc", str(sample()), "--json"))[0]
    assert first["verdicts"] == {"accepted": sum(first["posts"].values())}
    assert first["skipped"] == {"mode change": 1}
    second = lines(run("import-irc", str(sample()), "--json"))[0]
    assert second["verdicts"] == {"duplicate": sum(first["posts"].values())}
    assert "lines skipped: mode change" in run("import-irc", str(sample())).stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "zz"], "invalid hash"),
        (["show", "00" * 32], f"post {'00' * 32} not found"),
        (["show", "abcd"], "no post found with the hash"),
        (["show"], "Missing argument"),
        (["delete", "0000"], "no post found"),
        (["delete", "00" * 32], "post 0000"),
        (["post", "x" * 65, "text"], "has 65 code points, expected 1 to 64"),
        (["post", "default", "x" * 4097], "has 4097 bytes, the maximum is 4096"),
        (["post", "", "text"], "expected 1 to 64 code points, got 0"),
        (["topic", "default", "x" * 513], "expected 0 to 512"),
        (["name", "x" * 33], "expected 1 to 32"),
        (["name", ""], "expected 1 to 32 code points, got 0"),
        (["log", "default", "-n", "0"], "0 is not in the range"),
        (["log", "default", "--after", "tomorrow"], "invalid time"),
        (["log", "default", "--after", "99999999999y"], "invalid time"),
        (["prune"], "missing option: select the posts to discard"),
        (["prune", "--author", "me"], "a public key"),
        (["prune", "--before", "soon"], "invalid time"),
        (["import-irc", "/nowhere/at/all"], "file or folder not found:"),
        (["import-irc", __file__], "is not a chat log"),
        (["init", "--dialect", "klingon"], "klingon"),
        (["init", "--dialect", "draft8"], "has the dialect legacy"),
        (["init", "--import-key", "/nowhere"], "cannot read the identity"),
        (["nonsense"], "No such command"),
        (["demo", "--logs", "/nowhere"], "does not exist"),
    ],
)
def test_bad_input_is_reported_with_status_2(run: Run, arguments: list[str], reason: str) -> None:
    run("init")
    result = run(*arguments, expect=2)
    assert reason in result.stderr
    assert result.stdout == ""
    assert "no problems found" in run("check").stdout


@pytest.mark.parametrize(
    "command", ["log default", "channels", "users", "stats", "check", "post default x", "dump", "rebuild"]
)
def test_without_a_store_commands_explain_how_to_create_one(run: Run, command: str, tmp_path: Path) -> None:
    assert "cablestore init" in run(*command.split(), expect=2).stderr
    assert not (tmp_path / "store").exists()


def test_a_store_in_use_is_reported_with_status_2(run: Run, tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store"):
        found = shell("channels", store=tmp_path / "store")
    assert found.returncode == 2
    assert f"open in process {os.getpid()}" in found.stderr
    assert "Traceback" not in found.stderr


def test_problems_result_in_status_1_and_rebuild_repairs_them(run: Run, tmp_path: Path) -> None:
    run("init")
    run("post", "default", "x")
    from cablestore.index.leveldb import LevelDB

    database = LevelDB(next((tmp_path / "store").glob("generation-*")))
    with database.snapshot() as state:
        rows = list(state.scan(b"!author!", b'!author"'))
    database.write({key: None for key, _ in rows}, sync=True)
    database.close()
    result = run("check", expect=1)
    assert "author: a missing row" in result.stdout
    assert "cablestore rebuild" in result.stdout
    assert {problem["view"] for problem in lines(run("check", "--json", expect=1))[:-1]} >= {"author"}
    run("rebuild")
    run("check")


def test_damage_results_in_status_3(run: Run, tmp_path: Path) -> None:
    run("init")
    run("post", "default", "x")
    (next((tmp_path / "store").glob("generation-*")) / "CURRENT").unlink()
    assert "cablestore rebuild" in run("channels", expect=3).stderr
    result = run("rebuild", expect=1)  # without its list of tables, the loss of posts is unknown
    assert "the number of lost posts is unknown" in result.stdout.replace("\n", " ")
    assert "damaged database is kept in" in result.stderr.replace("\n", " ")
    assert [m["text"] for m in lines(run("log", "default", "--json"))] == ["x"]


def test_keys_are_exported_and_imported_by_file(run: Run, tmp_path: Path) -> None:
    run("init")
    run("identity", "--export", str(tmp_path / "key"))
    found = lines(run("identity", "--json"))[0]["public_key"]
    made = lines(run("init", "-s", str(tmp_path / "other"), "--import-key", str(tmp_path / "key"), "--json"))[0]
    assert made["public_key"] == found
    assert "already exists" in run("identity", "--export", str(tmp_path / "key"), expect=2).stderr


def test_texts_of_peers_cannot_control_the_terminal(run: Run, tmp_path: Path) -> None:
    run("init")
    evil = ANN.text("default", "\x1b[2J\x1b]0;owned\x07 \u202edesrever [bold]not markup[/bold]")
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(
            raws(evil, ANN.named("\x1b[31mann"), ANN.topic("default", "\r\x9b2J[red]t[/red]"), ANN.join("\x1b[H"))
        )
    for command in (["log", "default"], ["channels"], ["users"], ["show", evil.hash.hex()]):
        printed = run(*command).stdout
        assert not set(printed) & set("\x1b\x07\x9b\r\u202e")
    assert "[bold]not markup[/bold]" in run("log", "default").stdout
    assert safe("a\x00b\u2066c👩‍🚀") == "a\\u{0}b\\u{2066}c👩‍🚀"


@pytest.mark.thorough
def test_follow_shows_posts_of_another_process(run: Run, tmp_path: Path) -> None:
    run("init")
    run("post", "default", "before")
    store = tmp_path / "store"
    environment = os.environ | {"CABLESTORE_STORE": str(store), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "cablestore", "log", "default", "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["text"] == "before"
        for word in ("one", "two"):
            # The follower may briefly have the store open.
            wait_until(lambda word=word: shell("post", "default", word, store=store).returncode == 0)  # type: ignore[misc]  # mypy does not see the default
            assert json.loads(follower.stdout.readline())["text"] == word
        follower.send_signal(signal.SIGINT)
        assert follower.wait(LIMIT_S) == 130


def logged_size_bytes(store: Path) -> int:
    """Return the size of the database's logs, which it may remove at any time."""
    found = 0
    for log in store.glob("generation-*/*.log"):
        with suppress(FileNotFoundError):
            found += log.stat().st_size
    return found


@pytest.mark.thorough
def test_interrupting_an_import_keeps_stored_posts(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "garden"
    folder.mkdir(parents=True)
    (folder / "2022-01-31").write_text("".join(f"[{i // 1000:02}:00] <nick{i % 50}> line {i}\n" for i in range(20_000)))
    environment = os.environ | {"CABLESTORE_STORE": str(tmp_path / "store")}
    command = [sys.executable, "-m", "cablestore", "import-irc", str(tmp_path / "logs")]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: logged_size_bytes(tmp_path / "store") > 500_000)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 130, errors
    assert "stored data is kept" in errors
    assert "Traceback" not in errors
    with CableStore.open(tmp_path / "store") as store:
        assert store.check().is_clean
        stored = store.stats().posts.get("text", 0)
        assert 0 < stored < 20_000
    resumed = shell("import-irc", str(tmp_path / "logs"), "--json", store=tmp_path / "store")
    assert json.loads(resumed.stdout)["verdicts"]["duplicate"] >= stored
    with CableStore.open(tmp_path / "store") as store:
        assert store.stats().posts["text"] == 20_000


def test_a_reader_that_stops_early_causes_no_error(run: Run, tmp_path: Path) -> None:
    run("import-irc", str(sample()))
    command = f"{sys.executable} -m cablestore dump -s {tmp_path / 'store'} | head -1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert found.stderr == ""
    assert len(found.stdout.splitlines()) == 1


def every_command(group: click.Group, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command, including those of groups."""
    for name, command in sorted(group.commands.items()):
        assert command.get_short_help_str(), name
        if isinstance(command, click.Group):
            yield from every_command(command, *above, name)
        else:
            yield (*above, name)


@pytest.mark.parametrize("words", list(every_command(click.Group(commands=load_all()))), ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(run: Run, words: tuple[str, ...]) -> None:
    text = " ".join(run(*words, "--help").stdout.split())
    assert text.count(f"Example: `{' '.join(('cablestore', *words))}") == 1 or words == ("completion",)
    assert ("--json" in text) is (words != ("chat",))  # `chat` has no output but a screen


def test_the_list_of_commands_shows_the_first_line_of_each_help() -> None:
    wide = 1000
    commands = load_all()
    assert list(commands) == list(cli.commands)
    for name, command in commands.items():
        assert cli.commands[name].get_short_help_str(wide) == command.get_short_help_str(wide)


def test_an_unknown_command_is_reported(run: Run) -> None:
    found = run("chanels", expect=2)
    assert "No such command 'chanels'" in found.stderr
    assert "channels" in found.stderr


def test_the_version_is_printed(run: Run) -> None:
    assert re.fullmatch(r"cablestore, version \d+\.\d+\.\d+(rc\d+)?\n", run("--version").stdout)


@pytest.mark.thorough
def test_the_demo_runs_and_reports_its_stages(run: Run, tmp_path: Path) -> None:
    kept = run("demo", "--keep", str(tmp_path / "kept")).stdout
    for said in (
        "deleted 5 messages",
        "the dumps are equal",
        "BLAKE3",
        "tombstones: of a dead post",
        "into the next database of the store, and checked it",
        "deleted 5 more messages; a rebuild in this process writes the same rows",
    ):
        assert said in kept
    assert "generation-" not in kept
    assert "seconds" not in kept
    with CableStore.open(tmp_path / "kept") as store:
        assert store.check(signatures=True).is_clean
        assert store.stats().posts["delete"] == 10
    assert "is not empty" in run("demo", "--keep", str(tmp_path / "kept"), expect=2).stderr


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stage", ["4. authors delete", "10. export another"])
def test_an_interrupted_demo_leaves_no_files(tmp_path: Path, number: signal.Signals, stage: str) -> None:
    command = [sys.executable, "-u", "-m", "cablestore", "demo"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as process:
        assert process.stdout is not None
        assert any(stage in line for line in process.stdout)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors.strip()) == (130, "interrupted: stored data is kept")
    assert list(tmp_path.iterdir()) == []


def test_histograms_fit_on_a_screen() -> None:
    day_ms = 86_400_000
    for count in (1, 20, 100, 5000, 40_000):
        bars = list(histogram([(day_ms * day, day + 1) for day in range(count)]))
        assert 1 <= len(bars) <= 24
        assert all(len(bar.plain) < 90 for bar in bars)
    assert list(histogram([])) == []
    assert len(list(histogram([(2**52, 1)]))) == 1


def test_times_and_sizes_are_formatted() -> None:
    out = Output(as_json=False)
    assert re.fullmatch(r"2023-11-1\d \d\d:\d\d", out.when(1_700_000_000_000))
    assert out.when(2**53 - 1) == f"{2**53 - 1} ms"
    assert [size(n) for n in (0, 999, 1000, 1_234_567, 5 * 10**12)] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5000.0 GB"]


def test_the_default_store_is_in_the_data_folder_of_the_user(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "CABLESTORE_STORE"} | {"XDG_DATA_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "cablestore", "init", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert json.loads(found.stdout)["store"] == str(tmp_path / "cablestore" / "store")
    assert Identity.generate() != Identity.generate()
