"""What a cluster is started with: scripts, manifests, and the page about them."""

import re
import subprocess
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from namespace_hosts import PORT, PORTS
from rookery.config.schema import ClusterConfig

TREE = Path(__file__).parents[3]
PAGE = (TREE / "docs" / "cluster.md").read_text()
SLURM = TREE / "examples" / "cluster" / "slurm.sh"
KUBERAY = TREE / "examples" / "cluster" / "kuberay.yaml"
RAY = re.search(r"^ray==(.+)$", (TREE / "constraints.txt").read_text(), re.M)[1]  # type: ignore[index]
SIZES = {"Mi": 1 << 20, "Gi": 1 << 30}


def _kinds() -> dict[str, Any]:
    return {entry["kind"]: entry for entry in yaml.safe_load_all(KUBERAY.read_text())}


def _groups() -> list[dict[str, Any]]:
    spec = _kinds()["RayCluster"]["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def _containers() -> list[dict[str, Any]]:
    return [group["template"]["spec"]["containers"][0] for group in _groups()]


def _bytes(size: str) -> int:
    return int(size[:-2]) * SIZES[size[-2:]]


def test_the_slurm_script_is_a_script():
    done = subprocess.run(["bash", "-n", str(SLURM)], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert SLURM.stat().st_mode & 0o111
    assert SLURM.read_text().startswith("#!/usr/bin/env bash\n")


def test_the_slurm_script_has_a_private_token_before_it_starts_anything():
    text = SLURM.read_text()
    order = [text.index(part) for part in ("umask 077", "mktemp", "RAY_AUTH_MODE=token", "srun --")]

    assert order == sorted(order)
    assert "set -euo pipefail" in text


def test_the_manifest_is_a_cluster_that_asks_for_a_token_and_is_closed_to_others():
    kinds = _kinds()
    cluster, policy = kinds["RayCluster"], kinds["NetworkPolicy"]["spec"]
    own = {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}

    assert cluster["apiVersion"] == "ray.io/v1"
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    assert policy["podSelector"] == own
    assert policy["ingress"] == [{"from": [{"podSelector": own}]}]
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"


def test_all_pods_of_the_manifest_have_the_versions_that_are_tested():
    images = {container["image"] for container in _containers()}

    assert _kinds()["RayCluster"]["spec"]["rayVersion"] == RAY
    assert images == {f"rookery:ray-{RAY}"}
    assert f"rayproject/ray:{RAY}-" in KUBERAY.read_text()


def test_the_start_parameters_of_the_manifest_are_text_and_name_their_sizes():
    for group in _groups():
        parameters = group["rayStartParams"]

        assert all(isinstance(value, str) for value in parameters.values())
        assert parameters.keys() >= {"num-cpus", "object-store-memory"}


def test_every_pod_has_shared_memory_for_its_object_store_within_its_memory():
    for group, container in zip(_groups(), _containers(), strict=True):
        volumes = {volume["name"]: volume for volume in group["template"]["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        shm = volumes[mounts["/dev/shm"]]["emptyDir"]

        assert shm["medium"] == "Memory"
        store = int(group["rayStartParams"]["object-store-memory"])
        assert store < _bytes(shm["sizeLimit"]) < _bytes(container["resources"]["limits"]["memory"])
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_head_of_the_manifest_keeps_runs_on_a_volume_that_is_claimed():
    claim = _kinds()["PersistentVolumeClaim"]["metadata"]["name"]
    volumes = _groups()[0]["template"]["spec"]["volumes"]
    mounts = {mount["name"]: mount["mountPath"] for mount in _containers()[0]["volumeMounts"]}
    runs = next(volume for volume in volumes if "persistentVolumeClaim" in volume)

    assert runs["persistentVolumeClaim"]["claimName"] == claim
    assert f"--run-dir {mounts[runs['name']]}/" in KUBERAY.read_text()


def test_the_page_has_every_setting_of_a_cluster_with_its_default():
    rows = dict(re.findall(r"^\| `cluster\.(\w+)` \| (\S+) \|", PAGE, re.M))
    words = {None: "none", False: "false", MISSING: "none"}  # missing: an empty mapping

    assert rows == {
        entry.name: words.get(entry.default, str(entry.default)) for entry in fields(ClusterConfig)
    }


@pytest.mark.parametrize("flag", [name for name in PORTS if "worker" not in name])
def test_the_page_has_the_ports_that_the_tests_use(flag):
    assert f"| {PORTS[flag]} | `ray start --{flag}` |" in PAGE


def test_the_page_has_the_port_of_the_head_and_the_range_of_the_workers():
    assert f"| {PORT} | `ray start --port` (head) |" in PAGE
    assert f"| {PORTS['min-worker-port']} to {PORTS['max-worker-port']} |" in PAGE
