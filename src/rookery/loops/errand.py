"""An errand: a whole run on the host that has what its learner needs, a GPU for one.

    outcome = send_away(config, asked)        # where `rookery train` was typed

The run is the same as one that is started on that host: it joins the cluster from there, and its
folder is there. Here are only its lines, its answer, and the way for Ctrl+C to get to it.
"""

import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from rookery.config.schema import ClusterConfig, Config
from rookery.engines.interface import Failed
from rookery.engines.processes import GRACE_S, Child, send, spawn
from rookery.engines.ray import Cluster, Node
from rookery.engines.remote import Host
from rookery.errors import ConfigError, LostError, RookeryError
from rookery.manage.interrupts import Interrupts

LOOK_S = 0.2  # between two looks at how it is going
SIGNALS = {130: signal.SIGINT, 143: signal.SIGTERM}  # by the exit code that they lead to


class Asked(NamedTuple):
    """What was asked for, beyond the settings."""

    resume: Path | None
    exact: bool
    init_from: str | None


class Setup(NamedTuple):
    """What an errand is built from."""

    config: Config
    asked: Asked


class Look(NamedTuple):
    """An order: say what is new, and hand on a signal."""

    signal: int = 0


class Seen(NamedTuple):
    """The answer: lines, and how it ended, once it has."""

    text: str
    ended: "Ended | None"


class Ended(NamedTuple):
    answer: dict[str, Any]
    exit_code: int
    error: str | None = None


class Errand:
    """The role on the learner's host: a child that is the run, and a file with what it says."""

    roaming = False

    def __init__(self, setup: Setup):
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed with us
        at = os.dup(self._said.fileno())
        try:
            self._child: Child = spawn(
                "rookery.loops.errand:run_here", (at, setup), name="learner", fds=[at]
            )
        finally:
            os.close(at)
        self._read = 0

    def do(self, order: Look) -> Seen:
        if order.signal:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, order.signal)
        ended = self._child.receive(0.0)
        if ended is None and not self._child.alive:
            ended = self._child.receive(0.0) or Ended({}, 3, "the run's process died")
        text = os.pread(self._said.fileno(), 1 << 20, self._read)
        self._read += len(text)
        return Seen(text.decode(errors="replace"), ended)

    def roam(self) -> None:
        """It does nothing by itself."""

    def close(self) -> None:
        self._child.stop(GRACE_S)
        self._said.close()


def run_here(connection: Connection, given: tuple[int, Setup]) -> None:
    """The child: runs to the end and says how that was."""
    said, (config, asked) = given
    signal.signal(signal.SIGINT, signal.default_int_handler)  # no terminal's: it is handed on to us
    for stream in (1, 2):
        os.dup2(said, stream)
    os.close(said)
    from rookery.loops.launch import launch

    send(connection, _ended(lambda: launch(config, **asked._asdict(), quiet=True)))


def _ended(run: Callable[[], Any]) -> Ended:
    try:
        return Ended(*run())
    except RookeryError as error:
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr, flush=True)
        return Ended({}, error.exit_code, str(error))
    except KeyboardInterrupt:
        return Ended({}, 130, "interrupted")
    except SystemExit as left:
        return Ended({}, left.code if isinstance(left.code, int) else 1)
    except Exception as error:  # a bug, or a user's callback: the one who asked wants to see it
        traceback.print_exc()
        return Ended({}, 1, f"{type(error).__name__}: {error}")


def send_away(config: Config, asked: Asked) -> Ended:
    """Has the run done on a host with `cluster.learner_resources`; returns how it ended."""
    with Interrupts() as interrupts:
        cluster = Cluster.open(config.cluster, cpus=1, store_bytes=0)
        try:
            host = _start(cluster, config, asked)
            interrupts.begin()
            return _follow(host, interrupts, config.cluster)
        finally:
            cluster.close()


def _start(cluster: Cluster, config: Config, asked: Asked) -> Host:
    wanted = config.cluster.learner_resources
    node = _with(cluster.nodes(), wanted)
    _say(f"the learner goes to {node.name} ({node.address}); its run folder is there")
    here = replace(config.cluster, learner_resources={})
    return cluster.start(
        "rookery.loops.errand:Errand",
        Setup(replace(config, cluster=here), asked),
        name="learner",
        cpus=wanted.get("CPU", 0.0),
        gpus=wanted.get("GPU", 0.0),
        node=node.id,
    )


def _with(nodes: list[Node], wanted: dict[str, float]) -> Node:
    for node in nodes:
        if all(node.resources.get(name, 0.0) >= amount for name, amount in wanted.items()):
            return node
    have = "; ".join(f"{node.name} has {_amounts(node, wanted)}" for node in nodes)
    raise ConfigError(
        f"no host of the Ray cluster has cluster.learner_resources {wanted} ({have}); ask for "
        "less, or start a host with them (`ray start --num-gpus`, `--resources`)"
    )


def _amounts(node: Node, names: Iterable[str]) -> str:
    return ", ".join(f"{name} {node.resources.get(name, 0.0):g}" for name in names)


def _follow(host: Host, interrupts: Interrupts, config: ClusterConfig) -> Ended:
    passed_on = 0
    while True:
        number = SIGNALS.get(interrupts.exit_code, 0)
        host.send(Look(0 if passed_on else number))
        passed_on = passed_on or number
        time.sleep(LOOK_S)
        seen = host.receive(LOOK_S)
        while seen is None and host.alive:
            _refuse_to_wait(host, config)
            seen = host.receive(LOOK_S)
        if seen is None or isinstance(seen, Failed):
            raise LostError(
                f"the learner's host is gone ({host.failure}); `rookery train --resume` goes on "
                "from the run's last checkpoint, where its folder can be reached"
            )
        sys.stderr.write(seen.text)
        sys.stderr.flush()
        ended: Ended | None = seen.ended
        if ended is not None:
            return ended


def _refuse_to_wait(host: Host, config: ClusterConfig) -> None:
    """Ray starts it when others have left what it needs, if ever."""
    if host.address is None and host.silence_s > config.start_s:
        raise LostError(
            f"the learner was not started within {config.start_s:g} s (cluster.start_s): "
            f"{config.learner_resources} of its host are in use; end what uses them, or ask for "
            "less with --learner-resources"
        )


def _say(message: str) -> None:
    sys.stderr.write(f"rookery: {message}\n")
