"""Runs on clusters that are watched, and what must hold of them in the end."""

import json
from collections.abc import Callable, Mapping
from signal import SIGUSR1
from typing import Any

from cluster_driver import STATUS_S
from eventually import eventually
from namespace_hosts import Host
from run_processes import SUPPORT, words

UP_S = 90.0  # for a run to be on its way, on a busy machine
BACK_S = 90.0  # for a lost host worker to be replaced
END_S = 60.0
FOR_EVER = 10_000_000

# A run that ends when it is told to, saves when it is told to, and overwrites nothing meanwhile.
# Its actors sleep most of the time, so that what is waited for has the processors.
WATCHED: dict[str, Any] = {
    "env.id": "misbehaving_envs:Moody",
    "env.kwargs": "{mood: dawdle, at: 0, where: actors}",
    "run.env_steps": FOR_EVER,
    "eval.target": "null",
    "eval.period": FOR_EVER,
    "checkpoint.period": FOR_EVER,
    "replay.capacity": 600_000,
    "replay.sampling": "prioritized",
    "replay.samples_per_insert": 1.5,  # learner steps are what costs most here, and few will do
    "report.tensorboard": "false",
    "report.log_period": 500,
}


class Watched:
    """A run with `cluster_driver.py` on a host."""

    def __init__(
        self,
        host: Host,
        head: Host,
        *flags: str,
        settings: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ):
        number = len(list(host.shared.glob("watched-*")))
        self.folder = host.shared / f"watched-{number}"
        self.folder.mkdir()
        self.run_dir = self.folder / "run"
        first = flags or ("corridor", "--run-dir", str(self.run_dir))
        engine = ("--mode", "async", "--actors", "2") if not flags else ()
        where = ("--engine", "ray", "--address", head.address)
        chosen = words({**WATCHED, **(settings or {})})
        argv = [str(self.folder), *first, *engine, *where, *chosen]
        self.job = host.fork(argv, path=SUPPORT / "cluster_driver.py", env=env)

    @property
    def status(self) -> dict[str, Any]:
        path = self.folder / "status.json"
        status: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return status

    def until(self, condition: Callable[[dict[str, Any]], bool], within_s: float) -> dict[str, Any]:
        """Waits for a status, and returns it."""
        seen: dict[str, Any] = {}

        def holds() -> bool:
            assert self.job.poll() is None, f"it has ended: {self.job.said}\n{seen}"
            seen.clear()
            seen.update(self.status)
            return bool(seen) and condition(seen)

        if not eventually(holds, within_s, every_s=STATUS_S / 2):
            self.job.send(SIGUSR1)
            eventually(lambda: "most recent call first" in self.job.said, 1.0)
            raise AssertionError(f"{seen}\n{self.job.said}")
        return seen

    def grows(self, what: str, by: int, within_s: float = UP_S) -> dict[str, Any]:
        """Waits until a counter is so much larger than now."""
        goal = self.status.get(what, 0) + by
        return self.until(lambda s: s[what] >= goal, within_s)

    def order(self, line: str, within_s: float = BACK_S) -> dict[str, Any]:
        done = self.status["orders"]
        with open(self.folder / "orders", "a") as orders:
            orders.write(f"{line}\n")
        return self.until(lambda s: s["orders"] > done, within_s)

    def save(self) -> None:
        """Has a checkpoint written, and waits for it."""
        saved = self.status["saved"]
        self.order("save")
        self.until(lambda s: s["saved"] > saved, END_S)

    def finish(self) -> dict[str, Any]:
        """Ends the run and returns its report, once everything in it holds."""
        with open(self.folder / "orders", "a") as orders:
            orders.write("stop\n")
        assert self.job.wait(END_S) == 0, self.job.said
        report: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        account(report)
        return report


def account(report: dict[str, Any]) -> None:
    """Every acknowledged row is there, or was overwritten, or is counted as lost; none twice."""
    assert report["twice"] == 0
    assert report["broken_lanes"] == []
    told = 0
    for shard in report["shards"]:
        oldest, committed = shard["acknowledged"]
        assert oldest == 0, "rows were overwritten: nothing can be said of them"
        assert shard["rows"] >= committed
        told += committed - shard["base"]
    counted = 0
    for lost in report["lost"]:
        oldest, committed = lost["acknowledged"]
        told += committed - lost["base"]
        counted += max(0, committed - max(oldest, lost["kept"]))
    assert told == report["acknowledged_rows"]
    assert counted == report["lost_rows"]
    gone = {lost["tag"]: lost["acknowledged"][1] - lost["kept"] for lost in report["lost"]}
    for noted in report["noted"]:
        assert noted["missing"] <= gone.get(noted["tag"], 0), noted


def both_up(status: dict[str, Any]) -> bool:
    return all(host["up"] and not host["absent"] for host in status["hosts"])


def both_play(status: dict[str, Any]) -> bool:
    return both_up(status) and all(s["acknowledged"][1] > 500 for s in status["hosts"])


def plays_again(run: "Watched", place: int) -> None:
    """Waits until a host worker that was replaced has brought rows of its own."""

    def rows(status: dict[str, Any]) -> int:
        count: int = status["hosts"][place]["acknowledged"][1]
        return count

    given_back = rows(run.until(lambda s: both_up(s) and rows(s) > 0, BACK_S))
    run.until(lambda s: rows(s) > given_back + 200, BACK_S)


def incarnations(status: dict[str, Any]) -> list[list[int]]:
    return [host["incarnations"] for host in status["hosts"]]


def addresses(status: dict[str, Any]) -> list[str | None]:
    return [host["address"] for host in status["hosts"]]


def ours(host: Host) -> list[int]:
    """Returns the processes of runs on a host."""
    return [*host.pids("ray::RoleServer"), *host.pids("actor-")]
