"""The images in `deploy`: linters accept their files, and processes started with their commands work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from folders import ROOT
from serving import HERE, KEY, Served, environment, fetch, own_host
from waiting import LIMIT_S, wait_until

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
BIN = Path(sys.executable).parent
PROXIES = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), "http://127.0.0.1:9")


@pytest.mark.parametrize("name", ["Dockerfile", "reindex.Dockerfile"])
def test_hadolint_accepts_the_files_of_images(tmp_path: Path, name: str) -> None:
    found = subprocess.run([BIN / "hadolint", DEPLOY / name], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")
    (tmp_path / "wrong").write_text((DEPLOY / name).read_text().replace("USER 10001", "USER root"))
    assert subprocess.run([BIN / "hadolint", tmp_path / "wrong"], capture_output=True, check=False).returncode


def instruction(name: str) -> str:
    """Return the arguments of an instruction in the last stage."""
    found: list[str] = re.findall(rf"^{name} ((?:.*\\\n)*.*)", DOCKERFILE, re.MULTILINE)
    return found[-1].replace("\\\n", " ")


def placed(command: list[str]) -> list[str]:
    return [word.replace("/opt/cablestore/bin/", f"{BIN}/") for word in command]


def test_the_health_check_is_right_even_behind_a_proxy(tmp_path: Path) -> None:
    entrypoint = placed(json.loads(instruction("ENTRYPOINT")))
    assert entrypoint == [str(BIN / "cablestore"), "serve"]
    variables = dict(word.split("=", 1) for word in instruction("ENV").split())
    more = {name: value.replace("/data", str(tmp_path)) for name, value in variables.items()}
    served = Served(tmp_path / "store", **more | {"CABLESTORE_SERVE_LISTEN": HERE, "CABLESTORE_SERVE_METRICS": HERE})
    check = placed(json.loads(instruction("HEALTHCHECK").removeprefix("CMD ")))
    port = served.hear("metrics").rpartition(":")[2]
    check = [word.replace("9464", port) for word in check]
    try:
        done = subprocess.run(check, env=environment(**PROXIES), capture_output=True, check=False, timeout=LIMIT_S)
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    finally:
        assert served.stop() == 0
        assert served.process.stdout is not None
        served.process.stdout.close()
    done = subprocess.run(check, env=environment(), capture_output=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 1


def test_the_compose_file_matches_its_schema_and_starts_a_peer(tmp_path: Path) -> None:
    from compose_spec import PyCompose  # takes longer to import than most test files

    text = (DEPLOY / "compose.yaml").read_text()
    known = re.sub(r"on-failure:\d+", "on-failure", text)  # the library lacks the number of retries
    PyCompose.from_yaml(known).validate()
    with pytest.raises(ValueError, match="restart"):
        PyCompose.from_yaml(known.replace("on-failure", "sometimes"))
    found = yaml.safe_load(text)
    [service] = found["services"].values()
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert (DEPLOY / found["secrets"]["cabal-key"]["file"]).resolve() == ROOT / "cabal-key"
    (tmp_path / "cabal-key").write_text(KEY)
    more = {name: text.replace("/run/secrets", str(tmp_path)) for name, text in service["environment"].items()}
    served = Served(tmp_path / "store", "--create", "--listen", HERE, **more)
    wait_until(lambda: served.logged("listening", encrypted=True))
    assert served.stop() == 0
    assert served.process.stdout is not None
    served.process.stdout.close()
    assert not {name for name in os.environ if name in more}


def test_the_metrics_of_the_image_are_reachable_from_outside_the_container(tmp_path: Path) -> None:
    """Another address of this machine represents the address of the container."""
    variables = dict(word.split("=", 1) for word in instruction("ENV").split())
    host, _, port = variables["CABLESTORE_SERVE_METRICS"].rpartition(":")
    assert port in instruction("EXPOSE").split()
    served = Served(tmp_path / "store", "--create", "--listen", HERE, "--metrics", f"{host}:0")
    free_port = served.hear("metrics").rpartition(":")[2]
    assert served.address, "the node runs"
    try:
        status, page = fetch(f"http://{own_host().rpartition(':')[0]}:{free_port}/metrics")
        assert status == 200
        assert "cablestore_posts" in page
    finally:
        assert served.stop() == 0
        assert served.process.stdout is not None
        served.process.stdout.close()
    [service] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    assert f"127.0.0.1:{port}:{port}" in service["ports"], "only for this machine"


@pytest.mark.thorough
def test_the_package_is_built_from_the_files_that_docker_copies(tmp_path: Path) -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert patterns[0] == "*"
    ignore = shutil.ignore_patterns(*(word.removeprefix("**/") for word in patterns if word.startswith("**/")))
    context = tmp_path / "context"
    context.mkdir()
    for name in (word.removeprefix("!") for word in patterns if word.startswith("!")):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, context / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, context)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(context)]
    found = subprocess.run(build, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "cablestore/_signatures.abi3.so",
        "cablestore/views/data.py",
        "cablestore/reindex/job.py",
        "cablestore/py.typed",
    } <= names
