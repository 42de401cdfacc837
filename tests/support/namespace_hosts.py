"""Hosts made from namespaces, each with its own address, name, processes, /tmp, /dev/shm and home.

with hosts(2) as (a, b):
    a.start_head(cpus=2, env=QUICK)
    b.join(a, cpus=2)
    a.run(["python", "driver.py"], within_s=60)
    b.cut(); b.heal(); b.power_off(); b.restart()

Nothing of it has a name on this machine: the switch between the hosts lives in a namespace too,
so that test processes do not get into each other's way, and the kernel clears all of it away
when the test process ends, however it ends. What hosts share is `host.shared`, the tree of the
tests and the interpreter; needs root, iproute2 and util-linux.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from eventually import eventually
from run_processes import ALONE, SUPPORT, TREE, warm

PORT = 6379
GATEWAY = "10.77.0.254"
TOOLS = ("ip", "unshare", "nsenter", "setpriv", "bash")
LEASH = ("setpriv", "--pdeathsig", "KILL")  # ends with whoever started it
TREES = (TREE, Path(sys.prefix), Path(sys.base_prefix))
START_S = 60.0  # for a Ray node to be counted, on a busy machine
JOIN_TRIES = 3  # on a busy machine a node may give up: its agent has 15 s to import itself
# What no test needs: each is an interpreter of its own that imports Ray.
WITHOUT = ("--include-log-monitor=false", "--no-monitor", "--disable-usage-stats")
GAVE_UP = "timed out during startup"  # what `ray start` says then
MIB = 1 << 20

# A host is given up by Ray's head after 4 to 10 s, instead of after 15 to 55 s.
QUICK = {
    "RAY_health_check_period_ms": "500",  # by default 3000
    "RAY_health_check_timeout_ms": "2000",  # 10000
    "RAY_health_check_failure_threshold": "4",  # 5
}

# Every port is fixed, as on a cluster behind a firewall; docs/cluster.md has the same ones.
PORTS = {
    "node-manager-port": 6380,
    "object-manager-port": 6381,
    "runtime-env-agent-port": 6382,
    "dashboard-agent-listen-port": 6383,
    "dashboard-agent-grpc-port": 6384,
    "metrics-export-port": 6385,
    "min-worker-port": 10002,
    "max-worker-port": 10999,
}

# Arguments: name, an empty folder, the size of /dev/shm, a hosts file, trees to keep from /tmp.
BOOT = """
set -e
echo "$1" > /proc/sys/kernel/hostname
mount -t tmpfs -o size="$3" tmpfs /dev/shm
mount -t tmpfs -o size=2g,mode=1777 tmpfs "$2"
mkdir "$2/home"
for tree in "${@:5}"; do mkdir -p "$2${tree#/tmp}"; mount --bind "$tree" "$2${tree#/tmp}"; done
mount --move "$2" /tmp
mount --bind "$4" /etc/hosts
echo up
sleep infinity & wait  # bash reaps what is left behind, as an init has to
"""
PROBE = "mount -t tmpfs tmpfs /dev/shm && ip link add v0 type veth && ip link add br0 type bridge"


@cache
def missing() -> str | None:
    """Says why there can be no hosts here, None where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts made from namespaces need Linux and root"
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"hosts made from namespaces need {', '.join(absent)} (iproute2, util-linux)"
    spaces = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc"]
    done = subprocess.run([*spaces, "sh", "-c", PROBE], capture_output=True, text=True)
    return None if done.returncode == 0 else f"no namespaces here: {done.stderr.strip()}"


@contextmanager
def hosts(count: int, *, shm: int = 512 * MIB) -> Iterator[tuple["Host", ...]]:
    """Makes hosts that see each other, all with the same token; gone when left.

    `shm` is the size of each one's /dev/shm, in bytes.
    """
    with ExitStack() as stack:
        shared = Path(tempfile.mkdtemp(prefix="rookery-hosts-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, shared)
        switch = stack.enter_context(closing(_Switch()))
        token = secrets.token_hex(32)
        made = tuple(Host(i + 1, switch, shared, token, shm) for i in range(count))
        names = "".join(f"{host.ip} {host.name}\n" for host in made)
        (shared / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        for host in made:
            stack.callback(host.close)
            host.boot()
        yield made


class Door:
    """A process of the forker that waits for its child, a command on a host."""

    def __init__(self, pid: int):
        self.pid, self._status = pid, None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = warm().ask({"poll": self.pid})
        return self._status

    def wait(self) -> int:
        assert eventually(lambda: self.poll() is not None, START_S), f"{self.pid} does not end"
        status = self.poll()
        assert status is not None
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class Job:
    """A command on a host."""

    process: "subprocess.Popen[bytes] | Door"  # the door it went in by, on this machine
    stdout: Path
    stderr: Path

    @property
    def pid(self) -> int:
        """Its own number, as this machine counts."""
        inside: list[psutil.Process] = []

        def entered() -> bool:
            inside[:] = psutil.Process(self.process.pid).children()
            return bool(inside)

        assert eventually(entered, 5.0), self.said
        return inside[0].pid

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self, within_s: float) -> int:
        """Returns the exit status, negative where a signal ended it."""
        if not eventually(lambda: self.poll() is not None, within_s):
            raise AssertionError(f"still there after {within_s} s: {self.said}")
        return self.process.wait()

    def send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kills the command, not what it started."""
        self.process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        return self.stdout.read_text() + self.stderr.read_text()

    @property
    def answer(self) -> dict[str, Any]:
        """The JSON object on the last line of its output."""
        answer: dict[str, Any] = json.loads(self.stdout.read_text().splitlines()[-1])
        return answer


@dataclass(eq=False)
class Host:
    """One host. Process numbers are those of this machine; paths inside begin at `root`."""

    number: int
    switch: "_Switch"
    shared: Path  # the same folder on every host and here
    token: str | None
    shm_bytes: int
    _jobs: list[Job] = field(default_factory=list)
    _power: subprocess.Popen[bytes] | None = None
    _init: int = 0
    _nodes: int = 0

    @property
    def name(self) -> str:
        return f"host-{self.number}"

    @property
    def ip(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def address(self) -> str:
        """Where its Ray head listens, if it has one."""
        return f"{self.ip}:{PORT}"

    @property
    def node_name(self) -> str:
        """What Ray calls the node that was last started on it."""
        return f"{self.name}.{self._nodes}"

    @property
    def root(self) -> Path:
        """The host's file system, seen from here."""
        return Path(f"/proc/{self._init}/root")

    @property
    def env(self) -> dict[str, str]:
        """What every command on it gets; nothing of the tests' own Ray or pytest."""
        mine = ("RAY_", "PYTEST_", "TMPDIR")
        outer = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{outer['PATH']}"
        ray = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": "/tmp/home/token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # by default 15: too late beside other tests
        }
        modules = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PATH": path, "PYTHONPATH": modules, "HOME": "/tmp/home"}
        return {**outer, **ALONE, **ray, **own}

    # Power and cables.

    def boot(self) -> None:
        """Starts it with empty folders of its own, a token in its home, and its link up."""
        empty = Path(tempfile.mkdtemp(dir=self.shared))
        kept = [str(tree) for tree in TREES if tree.is_relative_to("/tmp")]
        spaces = ["--mount", "--net", "--pid", "--ipc", "--uts", "--mount-proc"]
        host = [self.name, str(empty), str(self.shm_bytes), str(self.shared / "hosts")]
        unshare = ["unshare", *spaces, "--fork", "--kill-child", "bash", "-c", BOOT, "boot"]
        with open(self.shared / f"{self.name}.boot", "wb") as complaints:
            self._power = subprocess.Popen(
                [*LEASH, *unshare, *host, *kept],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
            )
        assert self._power.stdout is not None
        with self._power.stdout as said:
            assert said.readline() == b"up\n", (self.shared / f"{self.name}.boot").read_text()
        self._init = psutil.Process(self._power.pid).children()[0].pid
        self.switch.plug(self.number, self.ip, self._init)
        self.set_token(self.token)

    def power_off(self) -> None:
        """Ends everything on it at once. Others hear nothing: the link goes first."""
        if self._power is not None:
            self.switch.unplug(self.number)
            self.close()

    def restart(self) -> None:
        """Powers it off and on: the same address, and nothing on it."""
        self.power_off()
        self.boot()

    def cut(self) -> None:
        self.switch.turn(self.number, "down")

    def heal(self) -> None:
        self.switch.turn(self.number, "up")

    def close(self) -> None:
        """Ends everything on it, also where it did not come up."""
        if self._power is None:
            return
        with suppress(ProcessLookupError):  # a test may have been faster
            os.kill(self._init or self._power.pid, signal.SIGKILL)
        self._power.wait(10.0)  # over once the kernel has ended every process of the host
        self._power, self._init = None, 0
        for job in self._jobs:
            job.end()
        self._jobs.clear()

    # What is on it.

    def pids(self, name: str) -> list[int]:
        """Returns its living processes with this in their name or command line.

        Of paths on the command line only the last part counts: `rookery train` is found by its
        name, and what merely lives in a folder of that name is not.
        """
        return [pid for pid in self._processes() if pid != self._init and name in _title(pid)]

    def _processes(self) -> list[int]:
        here = _space(self._init, "pid")
        return [pid for pid in psutil.pids() if _space(pid, "pid") == here]

    def kill(self, pid: int) -> None:
        assert _space(pid, "pid") == _space(self._init, "pid"), f"{pid} is not on {self.name}"
        os.kill(pid, signal.SIGKILL)

    def shm(self) -> set[str]:
        """Returns what has a name in its shared memory."""
        return {path.name for path in (self.root / "dev" / "shm").iterdir()}

    # Commands.

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> Job:
        """Starts a command on it, in `shared` unless told otherwise."""
        stdout, stderr = self._streams()
        spaces = ["--mount", "--net", "--pid", "--ipc", "--uts"]
        enter = ["nsenter", "--target", str(self._init), *spaces, "--", *LEASH]
        with open(stdout, "wb") as out, open(stderr, "wb") as err:
            process = subprocess.Popen(
                [*LEASH, *enter, "env", f"--chdir={cwd or self.shared}", *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.env | dict(env or {}),
                start_new_session=True,
            )
        self._jobs.append(Job(process, stdout, stderr))
        return self._jobs[-1]

    def fork(
        self,
        argv: Sequence[str],
        *,
        path: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """Starts `rookery argv...` on it, or the script at `path`, with all imports done."""
        stdout, stderr = self._streams()
        request = {
            "start": list(argv),
            "inside": self._init,
            "cwd": str(self.shared),
            "env": self.env | dict(env or {}),
            "script": None if path is None else path.read_text(),
            "path": None if path is None else str(path),
            "bare": False,
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        self._jobs.append(Job(Door(warm().ask(request)), stdout, stderr))
        return self._jobs[-1]

    def end_forked(self) -> None:
        """Kills what was forked on it, not what that has started."""
        for job in self._jobs:
            if isinstance(job.process, Door):
                job.end()

    def _streams(self) -> tuple[Path, Path]:
        """Returns empty files for what the next command says."""
        stem = f"{self.name}.{len(list(self.shared.glob(f'{self.name}.*.stdout')))}"
        stdout, stderr = self.shared / f"{stem}.stdout", self.shared / f"{stem}.stderr"
        stdout.touch()
        stderr.touch()
        return stdout, stderr

    def run(
        self, argv: Sequence[str], *, within_s: float = 30.0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on it to its end; one that is late is killed and fails the test."""
        job = self.popen(argv, env=env)
        try:
            code = job.wait(within_s)
        finally:
            job.end()
        said = job.stdout.read_text(), job.stderr.read_text()
        return subprocess.CompletedProcess(list(argv), code, *said)

    # Ray.

    def set_token(self, token: str | None) -> None:
        """Puts this token on it, or takes the one that is there away."""
        path = self.root / "tmp" / "home" / "token"
        path.unlink(missing_ok=True)
        if token is not None:
            path.touch(0o600)
            path.write_text(token)

    def start_head(
        self, *, cpus: int = 1, object_store: int = 100 * MIB, env: Mapping[str, str] | None = None
    ) -> Job:
        """Starts a Ray head on it and waits until it is up."""
        head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        ray = self.start_ray(*head, cpus=cpus, object_store=object_store, env=env)
        self._counted(ray, self)
        return ray

    def join(
        self,
        head: "Host",
        *,
        cpus: int = 1,
        object_store: int = 100 * MIB,
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """Starts a Ray node on it and waits until the head counts it."""
        there = f"--address={head.address}"
        for tries_left in reversed(range(JOIN_TRIES)):
            ray = self.start_ray(there, cpus=cpus, object_store=object_store, env=env)
            if self._counted(ray, head, must=not tries_left):
                break
        return ray

    def start_ray(
        self,
        *flags: str,
        cpus: int = 1,
        object_store: int = 100 * MIB,
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """Starts `ray start` on it and waits for nothing."""
        self._nodes += 1
        own = {
            "node-ip-address": self.ip,
            "node-name": self.node_name,
            "num-cpus": cpus,
            "object-store-memory": object_store,
            **PORTS,
            "node-manager-port": PORTS["node-manager-port"] + self._another_port,
        }
        words = [f"--{name}={value}" for name, value in own.items()]
        return self.popen(["ray", "start", *flags, *words, *WITHOUT, "--block"], env=env)

    @property
    def _another_port(self) -> int:
        """Returns 0 for the first node on this host, and then numbers that no other port has.

        To an address that it knows, Ray's head goes on talking over its old connection until TCP
        gives that up, and with `QUICK` it takes the new node for dead meanwhile.
        """
        return 0 if self._nodes == 1 else 10 + self._nodes % 100

    def counts(self, other: "Host", within_s: float = START_S) -> bool:
        """Does the head on this host count that one among the living, in time?"""
        return self._roll_call(other, "alive", within_s).wait(within_s + START_S) == 0

    def misses(self, other: "Host", within_s: float = START_S) -> bool:
        """Does the head on this host give that one up, in time?"""
        return self._roll_call(other, "gone", within_s).wait(within_s + START_S) == 0

    def _counted(self, ray: Job, head: "Host", must: bool = True) -> bool:
        """Returns whether the head counts this node; False only where `ray start` gave up."""

        def gave_up() -> bool:
            return ray.poll() is not None or GAVE_UP in ray.said

        call = head._roll_call(self, "alive", START_S)
        eventually(lambda: call.poll() is not None or gave_up(), 2 * START_S)
        call.end()
        counted = call.poll() == 0
        assert counted or (gave_up() and not must), f"{ray.said}\n{call.said}"
        if not counted:
            ray.end()
            for pid in self.pids("ray"):
                self.kill(pid)
        return counted

    def _roll_call(self, other: "Host", wanted: str, within_s: float) -> Job:
        script = str(SUPPORT / "await_ray_node.py")
        what = [self.address, other.node_name, wanted, str(within_s)]
        return self.popen([sys.executable, script, *what])


class _Switch:
    """What the hosts' links end at: a bridge, in a network namespace of its own."""

    def __init__(self) -> None:
        hold = [*LEASH, "unshare", "--net", "sleep", "infinity"]
        self._process = subprocess.Popen(hold, stdin=subprocess.DEVNULL)
        pid, here = self._process.pid, _space(os.getpid(), "net")
        assert eventually(lambda: _space(pid, "net") not in (None, here), 5.0)
        self._ip(
            pid,
            "link add br0 type bridge",
            f"addr add {GATEWAY}/24 dev br0",
            "link set br0 up",
        )

    def plug(self, number: int, address: str, init: int) -> None:
        """Links the host whose first process is `init`."""
        self._ip(
            self._process.pid,
            f"link add v{number} type veth peer name eth0 netns {init}",
            f"link set v{number} master br0 up",
        )
        self._ip(
            init,
            f"addr add {address}/24 dev eth0",
            "link set eth0 up",
            "link set lo up",
            f"route add default via {GATEWAY}",  # by its route Ray finds a host's own address
        )

    def unplug(self, number: int) -> None:
        self._ip(self._process.pid, f"link del v{number}")

    def turn(self, number: int, state: str) -> None:
        """Turns the port of a host up or down."""
        self._ip(self._process.pid, f"link set v{number} {state}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _ip(pid: int, *commands: str) -> None:
        """Runs `ip` commands in the network of a process."""
        subprocess.run(
            ["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"],
            input="\n".join(commands),
            text=True,
            check=True,
        )


def _space(pid: int, kind: str) -> str | None:
    """Returns which namespace of a kind a process is in, None where it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def _title(pid: int) -> str:
    """Returns a process's name and command line; nothing for one that is gone, or a zombie."""
    try:
        comm = Path(f"/proc/{pid}/comm").read_text().strip()
        line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0")
    except OSError:
        return ""
    return " ".join([comm, *(word.rpartition("/")[2] for word in line.split("\0"))]) if line else ""
