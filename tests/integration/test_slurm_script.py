"""The Slurm script on two hosts, with stand-ins for what Slurm would bring."""

import signal
from pathlib import Path

import pytest

from eventually import eventually
from namespace_hosts import Host, Job, hosts, missing
from run_processes import TREE

SCRIPT = TREE / "examples" / "cluster" / "slurm.sh"

# srun runs what is for the head where it is, and leaves what is for the others in a file.
TOOLS = {
    "scontrol": "printf 'host-1\\nhost-2\\n'",
    "srun": """
        for word in "$@"; do [[ $word == --exclude=* ]] && others=yes; done
        while [[ $1 == --* ]]; do shift; done
        [[ ${others:-} ]] || exec "$@"
        printf '%s\\n' "$@" > others.part && mv others.part others && exec sleep infinity""",
    "rookery": """
        stat --format=%a "$RAY_AUTH_TOKEN_PATH" > mode
        trap 'touch saved; exit 143' TERM
        printf '%s\\n' "$@" > trained.part && mv trained.part trained
        while [[ ! -e finish ]]; do sleep 0.05; done""",
}

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


def _submit(host: Host, *arguments: str) -> Job:
    """Starts the script as Slurm would: on the first host, in a folder that all hosts share."""
    tools = host.shared / "tools"
    tools.mkdir(exist_ok=True)
    for name, body in TOOLS.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tools / name).chmod(0o755)
    job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "host-[1-2]",
        "SLURM_CPUS_PER_TASK": "1",
        "HOME": str(host.shared),
        "PATH": f"{tools}:{host.env['PATH']}",
    }
    script = host.shared / "slurm.sh"
    script.write_text(
        SCRIPT.read_text().replace("STORE_BYTES=$((2 << 30))", "STORE_BYTES=100000000")
    )
    return host.popen(["bash", str(script), *arguments], env=job)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_the_slurm_script_brings_up_ray_on_all_hosts_trains_and_takes_everything_down():
    with hosts(2) as (a, b):
        job = _submit(a, "cartpole", "--mode", "async")
        eventually(lambda: (a.shared / "trained").exists() or job.poll() is not None, 60.0)
        assert (a.shared / "trained").exists(), job.said
        assert _lines(a.shared / "trained") == (
            [
                "train",
                "cartpole",
                "--mode",
                "async",
                "--engine",
                "ray",
                "--address",
                "10.77.0.1:24711",
            ]
        )
        assert (a.shared / "mode").read_text().strip() == "600"

        token = next(a.shared.glob(".rookery-job-4711-*/token"))
        assert eventually((a.shared / "others").exists, 10.0)
        node = b.popen(_lines(a.shared / "others"), env={"RAY_AUTH_TOKEN_PATH": str(token)})
        assert eventually(lambda: "Ray runtime started" in node.said, 60.0), node.said

        job.send(signal.SIGTERM)
        assert job.wait(30.0) == 143, job.said
        assert (a.shared / "saved").exists()
        assert not token.parent.exists()
        assert eventually(lambda: a.pids("ray") == [], 20.0)
