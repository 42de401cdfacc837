"""A script that never stops its registry leaves nothing in shared memory, however it ends."""

import os
import signal
import subprocess
import sys

import pytest

from rookery.sharing.registry import create_distributed_registry

SCRIPT = """
import os, signal, sys
from pool_buffers import SCHEMA, TERMS, fill
from rookery.sharing.registry import create_distributed_registry

def train():
    registry = create_distributed_registry(10_000, path=sys.argv[2])
    buffer_id = registry.register_buffer(run_id="forgetful", algorithm="SAC")
    ring = registry.attach(buffer_id, TERMS, SCHEMA, 1000)
    registry.claim(ring, buffer_id)
    fill(ring, 10)
    assert len(os.listdir(registry.path)) == 4
    return registry

how = sys.argv[1]
if how == "dropped":
    train()
    sys.exit()
registry = train()
if how == "raised":
    raise KeyError("a mistake of the user")
if how == "Ctrl+C":
    signal.raise_signal(signal.SIGINT)
if how == "terminated":
    os.kill(os.getpid(), signal.SIGTERM)
if how == "hung up":
    os.kill(os.getpid(), signal.SIGHUP)
if how == "own handler":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    os.kill(os.getpid(), signal.SIGTERM)
if how == "forked":
    for end in (lambda: sys.exit(0), lambda: os.kill(os.getpid(), signal.SIGTERM), registry.stop):
        child = os.fork()
        if not child:
            end()
            os._exit(0)
        os.waitpid(child, 0)
    assert [one.state for one in registry.list()] == ["lending"]
"""
ENDS = {
    "at its end": 0,
    "dropped": 0,
    "raised": 1,
    "Ctrl+C": -signal.SIGINT,
    "terminated": -signal.SIGTERM,
    "hung up": -signal.SIGHUP,
    "own handler": 7,
    "forked": 0,
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Starts a script for each way to end; returns exit code, errors and pool by way."""
    folder = tmp_path_factory.mktemp("pools")
    started = {
        how: subprocess.Popen(
            [sys.executable, "-c", SCRIPT, how, str(folder / how)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for how in ENDS
    }
    said = {how: process.communicate(timeout=120)[1] for how, process in started.items()}
    return {how: (started[how].returncode, said[how], folder / how) for how in ENDS}


@pytest.mark.parametrize("how", ENDS)
def test_a_script_that_forgets_to_stop_its_registry_leaves_nothing(ended, how):
    code, said, pool = ended[how]
    assert code == ENDS[how], said
    assert not pool.exists(), sorted(os.listdir(pool))


def test_signals_are_handled_only_while_a_registry_is_open(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with create_distributed_registry(path=tmp_path / "pool"):
        pass
    assert signal.getsignal(signal.SIGTERM) is before
