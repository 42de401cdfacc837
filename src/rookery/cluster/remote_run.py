"""Starts a whole run on another cluster host, one with the resources that its learner needs.

    ended = send_away(config, request, launch)  # on the host of `rookery train`

The run is the same as if it were started on that host: it joins the cluster from there, and its run
folder is there. The host of `rookery train` prints the run's output, returns the run's result, and
forwards Ctrl+C to it.
"""

import codecs
import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

from rookery import plugins
from rookery.config.schema import ClusterConfig, Config
from rookery.engines.processes import GRACE_S, Child, send, spawn
from rookery.engines.ray import Cluster, RayNode
from rookery.engines.rpc import RemoteHandle
from rookery.errors import ConfigError, LostError, RoleFailed, RookeryError, Terminated
from rookery.evaluation.backend import RunRequest
from rookery.runtime.signals import Interrupts
from rookery.terminal.output import notice
from rookery.types import JsonObject

POLL_S = 0.2  # between two requests for output
TEXT_BYTES = 1 << 20  # of output in one answer, at most
SIGNALS = {130: signal.SIGINT, 143: signal.SIGTERM}  # by the exit code that they lead to


class RemoteRunSetup(NamedTuple):
    """Constructor arguments of `RemoteRun`, the worker that trains on another cluster host."""

    config: Config
    request: RunRequest
    launch: str  # module:function that does the run


class PollRun(NamedTuple):
    """Control message: return a remote run's new output; send it the signal `signal` if not 0."""

    signal: int = 0


class RunOutput(NamedTuple):
    """Answer to `PollRun`: a remote run's new console output, and its result once it has ended."""

    text: str
    ended: "RunEnded | None"


class RunStarted(NamedTuple):
    """Message of a remote run's child process: a signal ends the run from now on."""


class RunEnded(NamedTuple):
    """Result of a remote run: its `--json` output, exit code, and error message if any."""

    answer: JsonObject
    exit_code: int
    error: str | None = None


class RemoteRun:
    """Worker on the learner's cluster host: trains in a child process and buffers its output."""

    self_driven = False

    def __init__(self, setup: RemoteRunSetup):
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with us
        at = self._output.fileno()
        target = "rookery.cluster.remote_run:run_here"
        self._child: Child = spawn(target, (at, setup), name="learner", fds=[at])
        self._read = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._signal = 0  # to be passed on
        self._started = False
        self._ended: RunEnded | None = None

    def do(self, order: PollRun) -> RunOutput:
        self._signal = order.signal or self._signal
        self._listen()
        if self._signal and self._started and self._ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, self._signal)
            self._signal = 0
        text = os.pread(self._output.fileno(), TEXT_BYTES, self._read)
        self._read += len(text)
        ended = self._ended if len(text) < TEXT_BYTES else None  # else there may be more to read
        return RunOutput(self._decoder.decode(text, final=ended is not None), ended)

    def _listen(self) -> None:
        """Reads the messages of the child process; does not block."""
        alive = self._child.alive  # before its last messages are read
        while (message := self._child.receive(0.0)) is not None:
            if isinstance(message, RunStarted):
                self._started = True
            else:
                self._ended = message
        if self._ended is None and not alive:
            self._ended = RunEnded({}, 3, "the run's process died")

    def work(self) -> None:
        """Does nothing: a remote run's worker only reacts to control messages."""

    def close(self) -> None:
        self._child.stop(GRACE_S)
        self._output.close()


def run_here(connection: "Connection[object, object]", given: tuple[int, RemoteRunSetup]) -> None:
    """Main function of a remote run's child process: trains, then sends the result (`RunEnded`)."""
    output, setup = given
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    with Interrupts() as interrupts:
        ended = _ended(partial(_launch, connection, setup))
        interrupts.reason = None  # the result tells of it
        interrupts.begin()  # the run is over: a signal has nothing to end
        send(connection, ended)


def _launch(
    connection: "Connection[object, object]", setup: RemoteRunSetup
) -> tuple[JsonObject, int]:
    send(connection, RunStarted())
    asked, launch = setup.request, plugins.load(setup.launch)
    outcome: tuple[JsonObject, int] = launch(
        setup.config, resume=asked.resume, exact=asked.exact, init_from=asked.init_from, quiet=True
    )
    return outcome


def _ended(run: Callable[[], tuple[JsonObject, int]]) -> RunEnded:
    try:
        return RunEnded(*run())
    except RookeryError as error:
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr, flush=True)
        return RunEnded({}, error.exit_code, str(error))
    except KeyboardInterrupt:
        return RunEnded({}, 130, "interrupted")
    except Terminated:
        return RunEnded({}, 143, "terminated")
    except SystemExit as left:
        return RunEnded({}, left.code if isinstance(left.code, int) else 1)
    except Exception as error:  # a bug, or a user's callback: shown on the host that started it
        traceback.print_exc()
        return RunEnded({}, 1, f"{type(error).__name__}: {error}")


def send_away(config: Config, request: RunRequest, launch: str) -> RunEnded:
    """Runs the training on a cluster host that has `cluster.learner_resources`; returns its result.

    `launch` names the function (module:function) that the other host calls to train. Raises
    ConfigError if no host has these resources, and LostError if the host is lost.
    """
    with Interrupts() as interrupts:
        cluster = Cluster.open(config.cluster, cpus=1, store_bytes=0)
        try:
            host = _start(cluster, config, request, launch)
            return _follow(host, interrupts, config.cluster)
        finally:
            cluster.close()


def _start(
    cluster: Cluster, config: Config, request: RunRequest, launch: str
) -> RemoteHandle[PollRun, RunOutput]:
    needed = config.cluster.learner_resources
    node = _with(cluster.nodes(), needed)
    notice(f"the learner runs on {node.name} ({node.address}); its run folder is there")
    config = replace(config, cluster=replace(config.cluster, learner_resources={}))
    setup, target = RemoteRunSetup(config, request, launch), "rookery.cluster.remote_run:RemoteRun"
    cpus, gpus = (needed.get(name, 0.0) for name in ("CPU", "GPU"))
    return cluster.start(target, setup, name="learner", cpus=cpus, gpus=gpus, node=node.id)


def _with(nodes: list[RayNode], needed: dict[str, float]) -> RayNode:
    for node in nodes:
        if all(node.resources.get(name, 0.0) >= amount for name, amount in needed.items()):
            return node
    have = "; ".join(f"{node.name} has {_amounts(node, needed)}" for node in nodes)
    raise ConfigError(
        f"no host of the Ray cluster has cluster.learner_resources {needed} ({have}); ask for "
        "less, or start a host with them (`ray start --num-gpus`, `--resources`)"
    )


def _amounts(node: RayNode, names: Iterable[str]) -> str:
    return ", ".join(f"{name} {node.resources.get(name, 0.0):g}" for name in names)


def _follow(
    host: RemoteHandle[PollRun, RunOutput], interrupts: Interrupts, config: ClusterConfig
) -> RunEnded:
    """Prints a remote run's output until it ends; returns its result.

    A signal before the first answer raises KeyboardInterrupt or SystemExit here, since the run has
    not started. A later one is passed on to the run.
    """
    passed_on = 0
    while True:
        number = SIGNALS.get(interrupts.exit_code, 0)
        host.send(PollRun(0 if passed_on else number))
        passed_on = passed_on or number
        time.sleep(POLL_S)
        seen = host.receive(POLL_S)
        while seen is None and host.alive:
            _refuse_to_wait(host, config)
            seen = host.receive(POLL_S)
        if seen is None or isinstance(seen, RoleFailed):
            raise LostError(
                f"the learner's host was lost ({host.failure}); `rookery train --resume` resumes "
                "from the run's last checkpoint, on a host that can read its run folder"
            )
        interrupts.begin()
        sys.stderr.write(seen.text)
        sys.stderr.flush()
        if seen.ended is not None:
            return seen.ended


def _refuse_to_wait(host: RemoteHandle[PollRun, RunOutput], config: ClusterConfig) -> None:
    """Raises LostError if Ray has not started the remote learner within `cluster.start_s`."""
    if host.address is None and host.silence_s > config.start_s:
        raise LostError(
            f"the learner was not started within {config.start_s:g} s (cluster.start_s): "
            f"{config.learner_resources} of its host are in use; end the processes "
            "that use them, or request less with --learner-resources"
        )
