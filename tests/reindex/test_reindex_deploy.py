"""The manifest for Kubernetes: Kubernetes accepts it, and the command accepts its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import yaml
from folders import ROOT

from cablestore.cli.reindex import reindex
from cablestore.files.uri import Uri, parse_location

MANIFEST = ROOT / "deploy" / "reindex.yaml"


def objects() -> dict[str, dict[str, Any]]:
    """Return the objects of the manifest by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


def test_kubernetes_accepts_the_manifest() -> None:
    """The check is strict: a field that is unknown to Kubernetes is an error too."""
    for each in objects().values():
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_the_parts_of_the_manifest_match() -> None:
    found = objects()
    pod = found["Job"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["cablestore"]
    name, *arguments = container["args"]
    options, exports, _ = reindex.make_parser(click.Context(reindex, info_name=name)).parse_args(list(arguments))
    assert Path(options["store"]).is_relative_to(container["volumeMounts"][0]["mountPath"])
    assert all(isinstance(parse_location(location), Uri) for location in (*exports, options["work"]))
    settings = dict(setting.split("=", 1) for setting in options["settings"])
    assert settings["spark.kubernetes.container.image"] == container["image"]
    ports = {str(port["port"]) for port in found["Service"]["spec"]["ports"]}
    assert ports == {settings["spark.driver.port"], settings["spark.driver.blockManager.port"]}
    assert found["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert settings["spark.driver.host"].startswith(f"{found['Service']['metadata']['name']}.")
    assert (
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
        == found["PersistentVolumeClaim"]["metadata"]["name"]
    )
    account = found["ServiceAccount"]["metadata"]["name"]
    assert pod["spec"]["serviceAccountName"] == found["RoleBinding"]["subjects"][0]["name"] == account
    assert settings["spark.kubernetes.authenticate.serviceAccountName"] == account
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert not [
        argument for argument in arguments if "SECRET_ACCESS_KEY=" in argument and "secretKeyRef" not in argument
    ]
