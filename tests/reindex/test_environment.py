"""Spark gets a path that it can read, for any name of the folder, and the variables that suit its master."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from cablestore.reindex.environment import environment_for, has_name, plain_path, working_directory


@pytest.mark.parametrize("name", ["a,b", "é", "two words"])
def test_an_unusual_folder_has_a_plain_path_while_it_is_used(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with plain_path(folder) as plain:
        assert plain.resolve() == folder.resolve()
        assert name not in str(plain)
        (plain / "file").write_text("content")
    assert not plain.exists()
    assert (folder / "file").read_text() == "content"


def test_a_plain_folder_is_used_itself(tmp_path: Path) -> None:
    with plain_path(tmp_path) as plain:
        assert plain == tmp_path
    assert tmp_path.is_dir()


def test_the_user_has_a_name_if_the_system_finds_it() -> None:
    found = subprocess.run(["id", "-un"], capture_output=True, check=False)
    assert has_name() is (found.returncode == 0)


@pytest.mark.parametrize(("name", "is_used"), [("plain", True), ("a,b", False), ("gone", False)])
def test_java_runs_in_a_folder_with_a_plain_name(
    name: str, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    if name == "gone":
        (tmp_path / name).rmdir()
    assert working_directory() == (tmp_path / name if is_used else Path("/"))


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """Return variables of a user, with a program in place of Java."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '    java.home = {tmp_path}/java'; echo '    java.version = 17.0.1'\n")
    java.chmod(0o755)
    return {
        "HADOOP_CONF_DIR": "/etc/hadoop",
        "JAVA_HOME": f"{tmp_path}/java",
        "PYSPARK_PYTHON": "python2",
        "SPARK_CONF_DIR": "/etc/spark",
        "SPARK_LOCAL_DIRS": "/nowhere",
        "SPARK_REMOTE": "sc://localhost",
        "SPARK_SUBMIT_OPTS": "-Da=b",
    }


def script_of(environ: dict[str, str]) -> str:
    return (Path(environ["SPARK_HOME"]) / "bin" / "spark-submit").read_text()


def test_a_local_master_has_only_the_settings_of_its_job(given: dict[str, str], tmp_path: Path) -> None:
    logging = tmp_path / "log4j2.properties"
    home = Path(pyspark.__path__[0])
    due = {
        "JAVA_HOME": given["JAVA_HOME"],
        "LOG4J_CONFIGURATION_FILE": logging.as_uri(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": f"{tmp_path}/conf",
        "SPARK_HOME": f"{tmp_path}/home",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": "-Da=b",
    }
    found = environment_for("local[2]", tmp_path, given)
    assert {name: value for name, value in found.items() if name not in {"LC_ALL", "SPARK_USER"}} == due
    assert f"SPARK_HOME={home} {home}/bin/spark-submit" in script_of(found)
    assert not (tmp_path / "conf").exists()
    assert "rootLogger.level = info" in logging.read_text()
    for _ in range(2):  # of a run before, too
        found = environment_for("local-cluster[2,1,1024]", tmp_path, given)
    assert f"SPARK_HOME={tmp_path}/cluster {tmp_path}/cluster/bin/spark-submit" in script_of(found)
    links = {path.name: path.resolve() for path in (tmp_path / "cluster").iterdir()}
    assert links == {path.name: path.resolve() for path in home.iterdir()}


def test_a_cluster_has_the_settings_of_the_user_and_an_address_if_it_is_here(
    given: dict[str, str], tmp_path: Path
) -> None:
    major, minor, *_ = pyspark.__version__.split(".")
    home = tmp_path / "spark"
    for folder, name in (("bin", "spark-submit"), ("jars", f"spark-core_2.13-{major}.{minor}.99.jar")):
        (home / folder).mkdir(parents=True)
        (home / folder / name).touch()
    given |= {"SPARK_HOME": str(home)}
    kept = {name: given[name] for name in given if name not in {"SPARK_HOME", "SPARK_REMOTE"}}
    for master, is_here in (
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://127.0.0.12:7077", False),
        ("yarn", False),
    ):
        found = environment_for(master, tmp_path, given)
        assert found.items() >= kept.items()
        assert "SPARK_REMOTE" not in found
        assert found.get("SPARK_LOCAL_IP") == ("127.0.0.1" if is_here else None), master
        assert (f"SPARK_HOME={home} " in script_of(found)) is not is_here, master
