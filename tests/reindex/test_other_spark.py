"""A local job does not depend on another Spark installation, on characters of a path, or on a user name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from folders import ROOT
from people import ANN
from reindexing import digest_of, digest_of_all, export_of
from waiting import LIMIT_S

pytest.importorskip("pyspark")

from cablestore.reindex.causes import SparkError
from cablestore.reindex.columns import BY_MONTH, SETTLED
from cablestore.reindex.environment import environment_for

POSTS = [ANN.join("default"), ANN.text("default", "hello")]
ODD = "a,b\\c\"d'e%20f#g:h*i{j} ${k} l é 日本"
"""Characters with a meaning for Spark, Java, shells, URIs or globs, and some that the locale lacks."""


def command(*arguments: object, cwd: Path, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "cablestore", *map(str, arguments)]
    return subprocess.run(program, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def settings_of_another_spark(folder: Path) -> dict[str, str]:
    """Return variables of another Spark, each of which breaks a job that uses it."""
    configuration, hadoop, java = folder / "conf", folder / "hadoop", folder / "java" / "bin" / "java"
    for made in (configuration, hadoop, java.parent):
        made.mkdir(parents=True)
    (configuration / "spark-defaults.conf").write_text("spark.submit.deployMode cluster\nspark.master yarn\n")
    (configuration / "spark-env.sh").write_text("exit 3\n")
    (hadoop / "core-site.xml").write_text("<configuration><broken")
    java.write_text("#!/bin/sh\necho '    java.version = 1.8.0_391'; echo '    java.home = /opt/java8'\n")
    java.chmod(0o755)
    return {
        "HADOOP_CONF_DIR": str(hadoop),
        "JAVA_HOME": str(folder / "java"),
        "JAVA_TOOL_OPTIONS": "-Xfoo",
        "JDK_JAVA_OPTIONS": "-version",
        "PYSPARK_PYTHON": "python2",
        "PYSPARK_SUBMIT_ARGS": "--master local[1]",
        "SPARK_API_MODE": "connect",
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_HOME": "/opt/spark-2.4",
        "SPARK_LOCAL_DIRS": "/proc/nowhere",
        "SPARK_LOCAL_HOSTNAME": "no-such-host.invalid",
        "SPARK_LOCAL_IP": "203.0.113.7",
        "SPARK_PREFER_IPV6": "true",
        "SPARK_TESTING": "1",
        "_JAVA_OPTIONS": "-Xmx99999g",
    }


def beside_another_spark(odd: Path, *arguments: object) -> None:
    """Run a command on an export in a folder with an unusual path, while another Spark is installed."""
    (odd / "tmp").mkdir(parents=True)
    environ = os.environ | settings_of_another_spark(odd.parent / "other")
    environ |= {"TMPDIR": str(odd / "tmp"), "LC_ALL": "C"}
    done = command(*arguments, "--cores", 1, env=environ, cwd=odd)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert list((odd / "tmp").iterdir()) == []


@pytest.mark.thorough
def test_a_store_is_created_beside_another_spark(tmp_path: Path) -> None:
    odd = tmp_path / ODD
    export_of(POSTS, odd / "export")
    beside_another_spark(odd, "reindex", odd / "export", "--out", odd / "store")
    assert digest_of(odd / "store") == digest_of_all(POSTS)
    assert {path.name for path in odd.iterdir()} == {"export", "store", "tmp"}


@pytest.mark.thorough
def test_tables_are_created_beside_another_spark(tmp_path: Path) -> None:
    """The community has no texts, deletions or topics. All tables have their columns."""
    odd = tmp_path / ODD
    export_of(POSTS[:1], odd / "export")
    beside_another_spark(odd, "tables", "export", "--out", "tables")
    for name, columns in SETTLED.items():
        found = {field.name: field.type for field in pq.read_table(odd / "tables" / name).schema}
        assert set(found) - set(columns) == ({"month"} if name in BY_MONTH else set())
        assert {column: found[column] for column in columns if column != "month"} == {
            column: of.arrow for column, of in columns.items() if column != "month"
        }


@pytest.mark.thorough
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can take another user id")
def test_reindexing_works_for_a_user_id_without_a_name() -> None:
    """In containers the home may be missing, and Java has no name for the user.

    The capability is for reading this checkout.
    """
    with tempfile.TemporaryDirectory() as folder:  # that of pytest is readable only by its user
        reindex_without_a_name(Path(folder))


def reindex_without_a_name(folder: Path) -> None:
    export_of(POSTS, folder / "export")
    folder.chmod(0o777)
    user = (
        "--reuid=54321",
        "--regid=54321",
        "--clear-groups",
        "--inh-caps=+dac_override",
        "--ambient-caps=+dac_override",
    )
    job = [sys.executable, "-m", "cablestore", "reindex", "export", "--out", "store", "--cores", "1"]
    bare = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["setpriv", *user, *job], cwd=folder, env=bare, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert digest_of(folder / "store") == digest_of_all(POSTS)


def test_a_cluster_keeps_the_settings_of_its_environment(tmp_path: Path) -> None:
    own = {"HADOOP_CONF_DIR": "/etc/hadoop", "SPARK_CONF_DIR": "/etc/spark", "PYSPARK_PYTHON": "./env/bin/python"}
    assert environment_for("yarn", tmp_path, os.environ | own).items() >= own.items()
    assert not environment_for("local[2]", tmp_path, os.environ | own).items() & own.items()


@pytest.mark.parametrize(
    ("jars", "message"), [([], "which does not contain Spark"), (["spark-core_2.12-3.5.1.jar"], "Spark 3.5.1")]
)
def test_spark_home_of_another_version_is_rejected(tmp_path: Path, jars: list[str], message: str) -> None:
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    for name in jars:
        (home / "bin").mkdir()
        (home / "bin" / "spark-submit").touch()
        (home / "jars" / name).touch()
    with pytest.raises(SparkError, match=f"SPARK_HOME .*{message}"):
        environment_for("yarn", tmp_path, os.environ | {"SPARK_HOME": str(home)})
