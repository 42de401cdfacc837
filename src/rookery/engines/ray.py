"""The ray engine: roles on the hosts of a Ray cluster. The only file that imports ray.

    cluster = Cluster.open(config.cluster, cpus=4, store_bytes=200 << 20)
    host = cluster.start("rookery.loops.station:Station", setup, name="station-0", cpus=1)
    host.send(order, cluster.share(weights)); host.receive(timeout_s=1.0)
    cluster.close()

A Ray that was started here ends with this process, however that ends (`broom.py`); one that was
joined stays, without our actors. Calls are applied once and in order (`remote.py`). Arrays in
answers and parcels may be read-only views of the object store: copy what is to be written to.
"""

import atexit
import contextlib
import importlib
import importlib.metadata
import logging
import os
import signal
import socket
import stat
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from rookery.config.schema import ClusterConfig
from rookery.engines import processes
from rookery.engines.broom import Broom
from rookery.engines.remote import (
    FIRST_RETRY_S,
    Hello,
    Host,
    Keeper,
    Parcel,
    Verdict,
    gist,
    versions,
)
from rookery.errors import ConfigError, LostError, StalledError

JOIN_S = 15.0  # for a cluster to take us in
START_S = 60.0  # for a Ray of our own
END_S = 10.0  # for disconnecting, and for what is left to be swept
INTERRUPTED_S = 4.0  # the same, where it was not up yet
LOOK_S = 2.0  # for an answer about the hosts, and of an actor
GLANCE_S = 0.2  # the same, where some are known: then the last answer counts
LEAST_STORE = 80 << 20  # bytes; Ray refuses less than 75 MiB
PUT_TRIES = 5
SETTINGS = {  # of Ray itself, where the user exports none
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",  # then it aborts a driver without a head
    "RAY_timeout_ms_task_wait_for_death_info": "100",  # a call fails after this and the next
    "RAY_core_worker_internal_heartbeat_ms": "100",
    "RAY_worker_niceness": "0",  # 15: on a busy host a station would not even start in time
    "RAY_USAGE_STATS_ENABLED": "0",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

left_behind = False  # a Ray hangs in this process: it crashes at an end with goodbyes


class Node(NamedTuple):
    """A live host."""

    id: str
    name: str
    address: str  # IP
    resources: dict[str, float]


class Resident(Keeper):
    """A keeper that knows which host it is on."""

    def hello(self) -> Hello:
        context = _ray().get_runtime_context()
        address = _ray().util.get_node_ip_address()
        node = context.get_node_id()
        return Hello(socket.gethostname(), address, node, os.getpid(), versions())


class _Wire:
    """A Ray actor."""

    def __init__(self, actor: Any):
        self._actor = actor
        self._killed = False

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._actor, method).remote(*args)

    def ready(self, ref: Any, timeout_s: float) -> bool:
        return bool(_ray().wait([ref], timeout=timeout_s)[0])

    def get(self, ref: Any) -> Any:
        return _ray().get(ref, timeout=LOOK_S)

    def judge(self, error: Exception) -> Verdict:
        """Whatever is neither the actor's end nor the call's own is worth another try."""
        kinds = _ray().exceptions
        if isinstance(error, kinds.RayTaskError):
            return Verdict.RAISED
        dead = (
            kinds.ActorDiedError,
            kinds.ActorUnschedulableError,
            kinds.NodeDiedError,
            kinds.WorkerCrashedError,
            kinds.LocalRayletDiedError,
            kinds.RuntimeEnvSetupError,
            kinds.TaskCancelledError,
        )
        if isinstance(error, dead):
            return Verdict.DEAD
        return Verdict.RETRY if isinstance(error, kinds.RayError) else Verdict.RAISED

    def kill(self) -> None:
        if not self._killed and _ray().is_initialized():
            self._killed = True
            with contextlib.suppress(_ray().exceptions.RayError, ValueError):  # it is gone already
                _ray().kill(self._actor)


# The cluster.


class Cluster:
    """A Ray that was started here or joined. `open` it, `close` it; one at a time in a process."""

    def __init__(self, session: "_Session", *, started: bool):
        self.started = started
        self._session = session
        self._client = uuid.uuid4().hex
        self._resident: Any = None  # the class that Ray knows
        self._hosts: list[Host] = []
        self._known: list[Node] = []
        self._asking: threading.Thread | None = None
        self._asked = 0.0  # when the head was first asked what it has not answered

    @classmethod
    def open(cls, config: ClusterConfig, *, cpus: int, store_bytes: int) -> "Cluster":
        """Starts a Ray on this machine, or joins the one at `config.address`.

        What cannot work is a ConfigError within JOIN_S. Ray's environment variables are ours until
        `close`; signal handlers stay as they are.
        """
        environ = _Environ()
        _need_ray()
        if config.address is None:
            store = max(store_bytes, LEAST_STORE)
            return cls(_start(config, environ, cpus, store), started=True)
        return cls(_join(config, environ, config.address), started=False)

    def nodes(self) -> list[Node]:
        """Returns the live hosts by address; the last known ones where the head does not answer."""
        if self._asking is None or not self._asking.is_alive():  # else it has waited long enough
            self._asking = threading.Thread(target=self._ask, name="nodes", daemon=True)
            self._asked = self._asked or time.monotonic()
            self._asking.start()
            self._asking.join(GLANCE_S if self._known else LOOK_S)
        return self._known

    @property
    def silence_s(self) -> float:
        """Seconds since the head was asked by `nodes` what it has not answered; 0 if it has."""
        return time.monotonic() - self._asked if self._asked else 0.0

    def start(
        self,
        target: str,
        setup: Any,
        *,
        name: str,
        cpus: float,
        gpus: float = 0.0,
        node: str | None = None,
    ) -> Host:
        """Brings `target(setup)` to life on some host, or on the one with the id `node`."""
        environ = {name: os.environ.get(name, "1") for name in THREADS}
        if self._resident is None:  # once: each new one has to be sent to the head
            self._resident = _ray().remote(Resident)
        actor = self._resident.options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=_strategy(node),
        )
        stay = (target, cloudpickle.dumps(setup), [p for p in sys.path if p], environ)
        host = Host(name, _Wire(actor.remote()), stay, self._client, len(self._hosts))
        self._hosts.append(host)
        return host

    def share(self, value: Any) -> Parcel:
        """Puts a value into the object store once. A full one is waited for a little."""
        full = (_ray().exceptions.ObjectStoreFullError, _ray().exceptions.OutOfDiskError)
        for attempt in range(PUT_TRIES):
            try:
                return Parcel(_ray().put(value))
            except full as error:
                cause = error
                time.sleep(FIRST_RETRY_S * 2**attempt)
        raise LostError(
            f"{socket.gethostname()}: Ray's object store is full ({gist(cause)}); give Ray a "
            "larger one (`ray start --object-store-memory`), and /dev/shm and the disk more room"
        ) from cause

    def wait(self, hosts: Sequence[Host], timeout_s: float) -> None:
        """Waits until one of these has news for `receive`, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            refs = [host.pending for host in hosts if host.busy]
            sent = [ref for ref in refs if ref is not None]
            left = max(0.0, deadline - time.monotonic())
            look = left if len(sent) == len(refs) else min(left, FIRST_RETRY_S)  # some are to retry
            if not sent:
                time.sleep(look)
            elif _ray().wait(sent, num_returns=1, timeout=look)[0]:
                return
            if time.monotonic() >= deadline:
                return

    def close(self) -> None:
        """Kills what was started here. Of a Ray that was started here, nothing is left."""
        for host in self._hosts:
            host.stop()
        self._hosts.clear()
        self._session.close()

    def _ask(self) -> None:
        try:
            found = [node for node in _ray().nodes() if node["Alive"]]
        except Exception:  # the head does not answer: that is for those who wait for its hosts
            return
        nodes = [_node(entry) for entry in found]
        self._known = sorted(nodes, key=lambda node: (node.address, node.id))
        self._asked = 0.0


def _node(entry: dict[str, Any]) -> Node:
    address = entry["NodeManagerAddress"]
    return Node(entry["NodeID"], entry["NodeManagerHostname"], address, dict(entry["Resources"]))


def _strategy(node: str | None) -> Any:
    if node is None:
        return "SPREAD"
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


class RayParameterServer:
    """A parameter server that is a Ray actor of yours, as loops ask it.

    server = RayParameterServer(ray.remote(ParameterServer).remote(arrays))
    loop = MainLoop(environment, replay_buffer, agent, server)
    """

    def __init__(self, actor: Any, *, patience_s: float = 60.0):
        self._actor, self._patience_s = actor, patience_s

    def register_worker(self, worker: str) -> int:
        return int(self._ask("register_worker", worker))

    def unregister_worker(self, worker: str) -> None:
        self._ask("unregister_worker", worker)

    def get_parameters(self, newer_than: int = -1) -> Any:
        return self._ask("get_parameters", newer_than)

    def push_gradients(self, worker: str, grads: Any, weight: float = 1.0, **more: Any) -> Any:
        """Ray may ask again what was on its way: an update without a `push_id` gets one."""
        more["push_id"] = more.get("push_id") or uuid.uuid4().hex
        return self._ask("push_gradients", worker, grads, weight, **more)

    def get_server_stats(self) -> dict[str, Any]:
        return dict(self._ask("get_server_stats"))

    def _ask(self, method: str, *given: Any, **more: Any) -> Any:
        kinds = _ray().exceptions
        asked = getattr(self._actor, method).remote(*given, **more)
        try:
            return _ray().get(asked, timeout=self._patience_s)
        except kinds.GetTimeoutError as error:
            why = f"the parameter server did not answer {method} within {self._patience_s:g} s"
            raise StalledError(f"{why}; look at its actor, or raise patience_s") from error
        except kinds.RayActorError as error:
            raise LostError(f"the parameter server's actor is gone: {gist(error)}") from error


# Starting and joining.


class _Session:
    """Ray in this process: a thread that starts it, waits, and ends it.

    A thread of its own, for three reasons: in the main thread Ray would take over SIGTERM, signals
    would wait until it is up, and what it starts is killed when the *thread* that did so ends.
    """

    def __init__(self, options: dict[str, Any], environ: "_Environ", broom: "Broom | None"):
        self._options, self._environ, self._broom = options, environ, broom
        self._up, self._over = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._quiet = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._live, name="ray", daemon=True)

    def open(self, within_s: float) -> None:
        """Raises what Ray says, or TimeoutError."""
        self._quiet.enter_context(_quiet())
        self._thread.start()
        if not self._up.wait(within_s):
            raise TimeoutError(f"no answer within {within_s:.0f} s")
        _take_signals_back()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends Ray. Where it hangs, what it has made is swept, and it is left to itself."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(END_S if self._up.is_set() else INTERRUPTED_S)
        if self._thread.is_alive():
            self._abandon()
        else:
            self._tidy()
        _take_signals_back()

    def _abandon(self) -> None:
        global left_behind
        left_behind = True
        atexit.unregister(_ray()._private.worker.shutdown)  # it would wait for what hangs
        if self._broom is not None:
            self._broom.sweep()

    def _tidy(self) -> None:
        if self._broom is not None:
            self._broom.finish()
        self._quiet.close()
        self._environ.restore()

    def _live(self) -> None:
        ray = _ray()
        try:
            ray.init(configure_logging=False, log_to_driver=False, **self._options)
        except Exception as error:  # whatever it was, whoever opens this gets it
            self._error = error
        self._up.set()
        self._over.wait()
        with contextlib.suppress(Exception):  # the head may be gone; what is left is swept
            ray.shutdown(wait_for_processes=True)


def _take_signals_back() -> None:
    """Below Python's handlers, Ray puts one of its own for SIGTERM that prints a stack, and leaves
    the default one when it goes."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if (handler := signal.getsignal(number)) is not None:
                signal.signal(number, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray says nothing: what it logs we say in a line, and what it prints on standard output, even
    with log_to_driver=False, would end up between the lines of --json."""
    logger = logging.getLogger("ray")
    worker: Any = importlib.import_module("ray._private.worker")
    level, speak = logger.level, worker.print_to_stdstream
    logger.setLevel(logging.CRITICAL + 1)
    worker.print_to_stdstream = lambda *args, **options: None
    try:
        yield
    finally:
        worker.print_to_stdstream = speak
        logger.setLevel(level)


class _Environ:
    """Ray's environment variables, to be put back as they were."""

    def __init__(self) -> None:
        self._before = dict(_variables())

    def set(self, changes: Mapping[str, str | None]) -> None:
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if "ray" in sys.modules:  # it has read them already
            raylet = importlib.import_module("ray._raylet")
            raylet.Config.initialize("")
            raylet.AuthenticationTokenLoader.instance().reset_cache()

    def restore(self) -> None:
        gone: dict[str, None] = dict.fromkeys(name for name, _ in _variables())
        self.set({**gone, **self._before})


def _variables() -> Iterator[tuple[str, str]]:
    """Yields what Ray reads and writes; it also takes over `breakpoint()`."""
    for name, value in os.environ.items():
        if name.startswith("RAY_") or name == "PYTHONBREAKPOINT":
            yield name, value


def _start(config: ClusterConfig, environ: _Environ, cpus: int, store_bytes: int) -> _Session:
    broom = Broom()
    environ.set(
        {
            **SETTINGS,
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": None,  # it would count more than the file
            "RAY_AUTH_TOKEN_PATH": str(broom.token),
        }
    )
    options = {
        "address": "local",
        "num_cpus": cpus,
        "object_store_memory": store_bytes,
        "include_dashboard": config.dashboard,
        "_temp_dir": str(broom.folder / "r"),
    }
    session = _Session(options, environ, broom)
    try:
        with broom.marking():
            session.open(START_S)
    except BaseException as error:  # a signal too: nothing may be left
        session.close()
        if isinstance(error, Exception):
            raise LostError(f"{socket.gethostname()}: Ray did not start: {_last(error)}") from error
        raise
    return session


def _join(config: ClusterConfig, environ: _Environ, address: str) -> _Session:
    environ.set({**SETTINGS, **os.environ, **_credentials(config)})
    session = _Session({"address": address}, environ, None)
    try:
        _knock(address)
        session.open(JOIN_S)
    except BaseException as error:
        session.close()
        if isinstance(error, ConfigError) or not isinstance(error, Exception):
            raise
        raise _refused(address, _last(error)) from error
    return session


def _refused(address: str, why: str) -> ConfigError:
    return ConfigError(f"{socket.gethostname()} cannot join the Ray cluster at {address}: {why}")


def _last(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1].strip()}"[:400]


def _credentials(config: ClusterConfig) -> dict[str, str | None]:
    """Returns the variables that make Ray show the right token. `disabled` is the user's word."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return {"RAY_AUTH_MODE": "disabled"}
    if config.token_path is None and os.environ.get("RAY_AUTH_TOKEN"):
        return {"RAY_AUTH_MODE": "token"}
    exported = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(config.token_path or exported or Path.home() / ".ray" / "auth_token").expanduser()
    _check_token(path)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": str(path)}


def _check_token(path: Path) -> None:
    here = socket.gethostname()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{here}: no token of the Ray cluster in {path} ({error.strerror}); copy the head's "
            "token file there, or name another one in cluster.token_path"
        ) from error
    if mode & 0o077:
        raise ConfigError(
            f"{here}: the token file {path} has mode {mode:04o}, others may read it; 0600 is "
            f"allowed: chmod 600 {path}"
        )


# Knocking: what ray.init cannot say quickly, in a process that may be killed.


def _knock(address: str) -> None:
    """Asks in a child whether the cluster takes us: ray.init itself retries for long, writes to
    the terminal, and has been seen to abort its process."""
    child = processes.spawn("rookery.engines.ray:knock", address, name="knock")
    try:
        why = child.receive(JOIN_S)
    finally:
        child.stop(grace_s=0.0)
    if why is None:
        why = (
            f"no answer within {JOIN_S:.0f} s; is the head up, and is a Ray of that cluster "
            f"running on this host (ray start --address={address})?"
        )
    if why:
        raise _refused(address, why)


def knock(connection: Connection, address: str) -> None:
    """The child: sends why it was refused, or an empty line."""
    reading, writing = os.pipe()
    os.dup2(writing, 2)  # Ray's own lines
    listener = threading.Thread(target=_listen, args=(connection, reading), daemon=True)
    listener.start()
    processes.send(connection, _try(address))
    os._exit(0)


def _try(address: str) -> str:
    """Returns why a cluster cannot be joined, or nothing."""
    if (closed := _unreachable(address)) is not None:
        return closed
    try:
        _ray().init(address=address, configure_logging=False, log_to_driver=False)
    except Exception as error:  # whatever it was, it is the answer
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text}"[:600]
    return ""


def _unreachable(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    if not host:
        return None
    try:
        socket.create_connection((host, int(port)), timeout=JOIN_S / 3).close()
    except OSError as error:
        return f"{error}; is the head up, and the address that of `ray start --head`?"
    return None


def _listen(connection: Connection, reading: int) -> None:
    with os.fdopen(reading, errors="replace") as lines:
        for line in lines:
            if "InvalidAuthToken" in line or "Unauthenticated" in line:
                processes.send(connection, _WRONG_TOKEN)
                os._exit(0)


_WRONG_TOKEN = (
    "it does not accept this host's token; copy the head's token file (mode 0600) and name it in "
    "cluster.token_path or RAY_AUTH_TOKEN_PATH"
)


# Ray itself.


def _need_ray() -> None:
    try:
        _ray()
    except ImportError as error:
        raise ConfigError(
            "engine ray needs ray, which is not installed; pip install 'rookery[ray]'"
        ) from error
    if _ray().is_initialized():
        raise ConfigError("this process is connected to a Ray already; ray.shutdown() it first")


def _ray() -> Any:
    """Imports ray, without its hook for exceptions: that one asks a head that may be gone."""
    if "ray" not in sys.modules:
        hook = sys.excepthook
        importlib.import_module("ray")
        sys.excepthook = hook
    return importlib.import_module("ray")
