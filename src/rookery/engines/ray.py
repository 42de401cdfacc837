"""The Ray engine: starts worker objects (roles) on the hosts of a Ray cluster.

    cluster = Cluster.open(config.cluster, cpus=4, store_bytes=200 << 20)
    host = cluster.start("rookery.cluster.host_worker:HostWorker", setup, name="host-0", cpus=1)
    host.send(order, cluster.share(weights)); host.receive(timeout_s=1.0)
    cluster.close()

A Ray instance started by this process ends with it, even after kill -9 (`ray_cleanup.py`). An
existing cluster that was joined stays up; only our Ray actors in it end. Calls are executed once
and in order (`rpc.py`). Arrays in answers and payloads may be read-only views of Ray's object
store: copy them before writing to them.
"""

import contextlib
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
from typing import Any, NamedTuple, Never

from rookery.config.schema import ClusterConfig
from rookery.engines import processes
from rookery.engines.library_internals import (
    import_ray,
    reread_ray_environment,
    silent_ray,
    skip_ray_shutdown_at_exit,
)
from rookery.engines.pickling import pickled
from rookery.engines.processes import ONE_BLAS_THREAD
from rookery.engines.ray_cleanup import RayCleanup
from rookery.engines.rpc import (
    FIRST_RETRY_S,
    LOOK_S,
    BuildRole,
    RayLink,
    RemoteHandle,
    RoleServer,
    SharedObject,
    gist,
)
from rookery.errors import ConfigError, LostError, StalledError

JOIN_S = 15.0  # for a cluster to take us in
START_S = 60.0  # for a Ray of our own
END_S = 10.0  # to disconnect and to end leftover processes
INTERRUPTED_S = 4.0  # the same, where it was not up yet
GLANCE_S = 0.2  # the same, where some are known: then the last answer counts
LEAST_STORE = 80 << 20  # bytes; Ray needs at least 75 MiB
PUT_TRIES = 5
SETTINGS = {  # of Ray itself, where the user exports none
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",  # then it aborts a driver without a head
    "RAY_timeout_ms_task_wait_for_death_info": "100",  # a call fails after this and the next
    "RAY_core_worker_internal_heartbeat_ms": "100",
    "RAY_worker_niceness": "0",  # 15: on a busy host a worker would not start in time
    "RAY_USAGE_STATS_ENABLED": "0",
}
# Ray then takes 127.0.0.1 as the address of this host, and every server of it binds to that. It
# replaces a `_node_ip_address` of 127.0.0.1 by the address of a network interface.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

left_behind = False  # a Ray hangs in this process, and an ordinary exit would crash


class RayNode(NamedTuple):
    """A live host of the Ray cluster."""

    id: str
    name: str
    address: str  # IP
    resources: dict[str, float]


# The cluster.


class Cluster:
    """Connection to a Ray cluster, started by this process or joined; one per process.

    It starts worker objects on the cluster's hosts. Get it with `open`, end it with `close`.
    """

    def __init__(self, session: "_Session"):
        self._session = session
        self._role_server: Any = None  # type: ignore[explicit-any]  # the class that Ray knows
        self._hosts: list[RemoteHandle[Never, object]] = []
        self._known: list[RayNode] = []
        self._asking: threading.Thread | None = None
        self._asked = 0.0  # when the head was first asked what it has not answered

    @classmethod
    def open(cls, config: ClusterConfig, *, cpus: int, store_bytes: int) -> "Cluster":
        """Starts Ray on this machine, or joins the cluster at `config.address`.

        The ports of a Ray that is started are open on the loopback interface only.
        Raises ConfigError if the cluster cannot be joined within about 15 s, and LostError if Ray
        does not start. Changes Ray's environment variables until `close`; signal handlers stay as
        they are.
        """
        environ = _Environ()
        _need_ray()
        if config.address is None:
            return cls(_start(config, environ, cpus, max(store_bytes, LEAST_STORE)))
        return cls(_join(config, environ, config.address))

    def nodes(self) -> list[RayNode]:
        """Returns the live hosts of the Ray cluster, sorted by address.

        If Ray's head node does not answer in time, returns the hosts of its last answer.
        """
        if self._asking is None or not self._asking.is_alive():  # else it has waited long enough
            self._asking = threading.Thread(target=self._ask, name="nodes", daemon=True)
            self._asked = self._asked or time.monotonic()
            self._asking.start()
            self._asking.join(GLANCE_S if self._known else LOOK_S)
        return self._known

    @property
    def silence_s(self) -> float:
        """Seconds for which Ray's head node has not answered the requests of `nodes`.

        Counts from the first unanswered request; 0 if the latest request was answered.
        """
        return time.monotonic() - self._asked if self._asked else 0.0

    def start(  # type: ignore[explicit-any]  # orders and answers follow from `target`
        self, target: str, setup: object, *, name: str, cpus: float, node: str, gpus: float = 0.0
    ) -> RemoteHandle[Any, Any]:
        """Starts the worker object `target(setup)` on the host with id `node`.

        Returns its handle at once; the worker starts in the background.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        environ = {name: os.environ.get(name, one) for name, one in ONE_BLAS_THREAD.items()}
        if self._role_server is None:  # once: each new one has to be sent to the head
            self._role_server = import_ray().remote(RoleServer)
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        # Ray restarts no actor and repeats no call, unless it is asked to
        actor = self._role_server.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=place)
        raw = pickled(setup, "what a host worker is started with")
        build = BuildRole(target, raw, [p for p in sys.path if p], environ)
        host: RemoteHandle[Never, object] = RemoteHandle(name, RayLink(actor.remote()), build)
        self._hosts.append(host)
        return host

    def share(self, value: object) -> SharedObject:
        """Puts a value into Ray's object store and returns its reference.

        Retries for a short time if the store is full, then raises LostError.
        """
        kinds = import_ray().exceptions
        full = kinds.ObjectStoreFullError, kinds.OutOfDiskError
        for attempt in range(PUT_TRIES):
            try:
                return SharedObject(import_ray().put(value))
            except full as error:
                cause = error
                time.sleep(FIRST_RETRY_S * 2**attempt)
        raise LostError(
            f"{socket.gethostname()}: Ray's object store is full ({gist(cause)}); give Ray a "
            "larger one (`ray start --object-store-memory`), and free space in /dev/shm and on the "
            "disk"
        ) from cause

    def wait(self, hosts: Sequence[RemoteHandle[Never, object]], timeout_s: float) -> None:
        """Waits until a remote call to one of the given workers is answered, at most `timeout_s`.

        The `receive` method of the worker's handle then returns the answer.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            refs = [host.pending for host in hosts if host.busy]
            sent = [ref for ref in refs if ref is not None]
            left = max(0.0, deadline - time.monotonic())
            look = left if len(sent) == len(refs) else min(left, FIRST_RETRY_S)  # some are to retry
            if not sent:
                time.sleep(look)
            elif import_ray().wait(sent, num_returns=1, timeout=look)[0]:
                return
            if time.monotonic() >= deadline:
                return

    def close(self) -> None:
        """Kills all workers that `start` has started, and disconnects from the Ray cluster.

        A Ray instance that this process started is shut down.
        """
        for host in self._hosts:
            host.stop()
        self._hosts.clear()
        self._session.close()

    def _ask(self) -> None:
        try:
            found = [node for node in import_ray().nodes() if node["Alive"]]
        except Exception:  # the head does not answer: `silence_s` grows
            return
        names = ("NodeID", "NodeManagerHostname", "NodeManagerAddress", "Resources")
        nodes = [RayNode(*(entry[name] for name in names)) for entry in found]
        self._known = sorted(nodes, key=lambda node: (node.address, node.id))
        self._asked = 0.0


class RayParameterServer:
    """Client of a parameter server that the user has started as a Ray actor.

    Raises StalledError if the server does not answer within `patience_s`, and LostError if the Ray
    actor is gone.

        server = RayParameterServer(ray.remote(ParameterServer).remote(arrays))
        loop = MainLoop(environment, replay_buffer, agent, server)
    """

    def __init__(self, actor: object, *, patience_s: float = 60.0):
        self._actor, self._patience_s = actor, patience_s

    def register_worker(self, worker: str) -> int:
        return int(self._ask("register_worker", worker))

    def unregister_worker(self, worker: str) -> None:
        self._ask("unregister_worker", worker)

    def get_parameters(self, newer_than: int = -1) -> Any:  # type: ignore[explicit-any]  # the server decides
        return self._ask("get_parameters", newer_than)

    def push_gradients(  # type: ignore[explicit-any]  # the server decides
        self, worker: str, grads: Any, weight: float = 1.0, **more: Any
    ) -> Any:
        """Sends gradients to the parameter server and returns its answer.

        Adds a unique `push_id` if there is none, so that the server can recognise a call that Ray
        delivers twice.
        """
        more["push_id"] = more.get("push_id") or uuid.uuid4().hex
        return self._ask("push_gradients", worker, grads, weight, **more)

    def adopt_optimizer(self, optimizer: str, lr: float, kwargs: object) -> None:
        if hasattr(self._actor, "adopt_optimizer"):  # a server of the user's may have none
            self._ask("adopt_optimizer", optimizer, lr, kwargs)

    def get_server_stats(self) -> dict[str, object]:
        return dict(self._ask("get_server_stats"))

    def _ask(  # type: ignore[explicit-any]  # the server decides
        self, method: str, *given: object, **more: object
    ) -> Any:
        kinds = import_ray().exceptions
        asked = getattr(self._actor, method).remote(*given, **more)
        try:
            return import_ray().get(asked, timeout=self._patience_s)
        except kinds.GetTimeoutError as error:
            why = f"the parameter server did not answer {method} within {self._patience_s:g} s"
            raise StalledError(f"{why}; look at its actor, or raise patience_s") from error
        except kinds.RayActorError as error:
            raise LostError(f"the parameter server's actor is gone: {gist(error)}") from error


# Starting and joining.


class _Session:
    """Thread that initializes Ray in this process, waits, and shuts it down.

    It is a thread for three reasons: in the main thread Ray would replace the SIGTERM handler,
    signals would be blocked until Ray is up, and Ray's child processes are killed when the *thread*
    that started them ends.
    """

    def __init__(self, options: dict[str, object], environ: "_Environ", cleanup: RayCleanup | None):
        self._options, self._environ, self._cleanup = options, environ, cleanup
        self._up, self._over = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._quiet = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._live, name="ray", daemon=True)

    def open(self, within_s: float) -> None:
        """Initializes Ray in the thread, which starts a Ray instance or joins a cluster.

        Raises the error that Ray raised, or TimeoutError after `within_s`.
        """
        self._quiet.enter_context(silent_ray())
        self._thread.start()
        if not self._up.wait(within_s):
            raise TimeoutError(f"no answer within {within_s:.0f} s")
        _take_signals_back()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Shuts Ray down. If Ray hangs, kills its processes and leaves the thread behind."""
        global left_behind
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(END_S if self._up.is_set() else INTERRUPTED_S)
        if self._thread.is_alive():
            left_behind = True
            skip_ray_shutdown_at_exit()
            if self._cleanup is not None:
                self._cleanup.sweep()
        else:
            if self._cleanup is not None:
                self._cleanup.finish()
            self._quiet.close()
            self._environ.restore()
        _take_signals_back()

    def _live(self) -> None:
        ray = import_ray()
        try:
            ray.init(configure_logging=False, log_to_driver=False, **self._options)
        except Exception as error:  # raised by `open`
            self._error = error
        self._up.set()
        self._over.wait()
        with contextlib.suppress(Exception):  # the head may be gone; leftover processes are ended
            ray.shutdown(wait_for_processes=True)


def _take_signals_back() -> None:
    """Installs Python's signal handlers again, after Ray has replaced them.

    When Ray starts, it installs a SIGTERM handler that prints a stack trace. When Ray shuts down,
    it installs the operating system's default handler.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if (handler := signal.getsignal(number)) is not None:
                signal.signal(number, handler)


class _Environ:
    """Changes Ray's environment variables (`set`), and later restores them (`restore`)."""

    def __init__(self) -> None:
        self._before = dict(_variables())

    def set(self, changes: Mapping[str, str | None]) -> None:
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        reread_ray_environment()

    def restore(self) -> None:
        gone: dict[str, None] = dict.fromkeys(name for name, _ in _variables())
        self.set({**gone, **self._before})


def _variables() -> Iterator[tuple[str, str]]:
    """Yields the environment variables that Ray reads or writes, with their values."""
    for name, value in os.environ.items():
        if name.startswith("RAY_") or name == "PYTHONBREAKPOINT":
            yield name, value


def _start(config: ClusterConfig, environ: _Environ, cpus: int, store_bytes: int) -> _Session:
    cleanup = RayCleanup()
    environ.set(
        {
            **SETTINGS,
            **os.environ,
            **LOOPBACK,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": None,  # it would count more than the file
            "RAY_AUTH_TOKEN_PATH": str(cleanup.token),
        }
    )
    options = {
        "address": "local",
        "num_cpus": cpus,
        "object_store_memory": store_bytes,
        "include_dashboard": config.dashboard,
        "_temp_dir": str(cleanup.folder / "r"),
    }
    session = _Session(options, environ, cleanup)
    with cleanup.marking():
        try:
            session.open(START_S)
        except BaseException as error:  # a signal too: nothing may be left
            session.close()  # marked: what Ray starts until it has ended is swept too
            if not isinstance(error, Exception):
                raise
            said = gist(error)
            raise LostError(f"{socket.gethostname()}: Ray did not start: {said}") from error
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
        raise _refused(address, gist(error)) from error
    return session


def _refused(address: str, why: str) -> ConfigError:
    return ConfigError(f"{socket.gethostname()} cannot join the Ray cluster at {address}: {why}")


def _credentials(config: ClusterConfig) -> dict[str, str | None]:
    """Returns the environment variables that make Ray use the cluster's authentication token.

    If the user has set RAY_AUTH_MODE to disabled, it stays disabled.
    """
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


# Test of an address in a child process, which may be killed: ray.init takes long to fail.


def _knock(address: str) -> None:
    """Tests in a child process whether the cluster can be joined; raises ConfigError if not.

    In this process ray.init would retry for long, write to the terminal, and possibly abort.
    """
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


def knock(connection: "Connection[object, object]", address: str) -> None:
    """Main function of the child process that tries to join the cluster at `address`.

    Sends the parent the reason why the cluster cannot be joined, or an empty string if it can.
    """
    reading, writing = os.pipe()
    os.dup2(writing, 2)  # Ray's own lines
    listener = threading.Thread(target=_listen, args=(connection, reading), daemon=True)
    listener.start()
    processes.send(connection, _try(address))
    os._exit(0)


def _try(address: str) -> str:
    """Tries to join the cluster at `address`.

    Returns the reason why it cannot be joined, or an empty string if it was joined.
    """
    if (closed := _unreachable(address)) is not None:
        return closed
    try:
        import_ray().init(address=address, configure_logging=False, log_to_driver=False)
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


def _listen(connection: "Connection[object, object]", reading: int) -> None:
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
        import_ray()
    except ImportError as error:
        raise ConfigError(
            "engine ray needs ray, which is not installed; pip install 'rookery[ray]'"
        ) from error
    if import_ray().is_initialized():
        raise ConfigError("this process is connected to a Ray already; ray.shutdown() it first")
