"""A run on a cluster that is watched: what was acknowledged, what was lost, what is there at last.

cluster_driver.py FOLDER ARGUMENT...       the arguments of `rookery train`

Whoever watches finds in FOLDER `status.json`, some ten times in a second, and at the end
`report.json`; and writes lines into `orders`:

    note            remember the keys of all rows that are there now
    save            write a checkpoint
    kill PLACE      kill -9 the host worker at a place, wait for the next, compare the others
    stop            end the run
"""

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rookery.cli import train
from rookery.cluster.cluster_group import ClusterActors
from rookery.cluster.host_handle import HostHandle
from rookery.cluster.messages import CopyRows, SaveShard
from rookery.evaluation.backend import RunRequest
from rookery.event import Ask, Event, IterationEnded, Saved, Stopped, Warned
from rookery.terminal.arguments import Parser, parse
from rookery.training.launch import session
from rookery.training.run import TrainingRun

STATUS_S = 0.1
BACK_S = 120.0  # for a host worker to be replaced
KEY = ("actor", "incarnation", "env", "episode", "t")


class Witness:
    """Sees a cluster group's host workers come and go, and counts for itself."""

    def __init__(self, training_run: TrainingRun, folder: Path):
        assert isinstance(training_run.parts.actors, ClusterActors)
        self.training_run, self.folder, self.cluster_actors = (
            training_run,
            folder,
            training_run.parts.actors,
        )
        self.cluster_actors._lose = self._losing(self.cluster_actors._lose)  # type: ignore[method-assign]
        squeeze = self.cluster_actors._share_cpus
        self.cluster_actors._share_cpus = self._squeezing(squeeze)  # type: ignore[method-assign]
        self.base = {
            b.tag: b.status.extent.committed for b in self.cluster_actors.handles
        }  # given at birth
        self.lost: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.saved = 0
        self.noted: dict[int, Any] = {}  # by tag
        self.kills: list[dict[str, Any]] = []
        self._done = 0
        self._written = 0.0

    def _losing(self, lose: Any) -> Any:
        def losing(handle: HostHandle, host: Any, trouble: str) -> None:
            tag, known = handle.tag, handle.acknowledged
            entry = {
                "place": handle.place,
                "tag": tag,
                "pid": host.pid,
                "address": host.address,
                "acknowledged": list(known),
                "base": self.base.setdefault(tag, 0),
                "incarnations": list(handle.incarnations),
                "trouble": trouble,
            }
            lose(handle, host, trouble)
            back = handle.recalled
            entry["kept"] = int(back.numbers["committed"]) if back is not None else 0
            self.base[handle.tag] = entry["kept"]
            self.lost.append(entry)

        return losing

    def _squeezing(self, squeeze: Any) -> Any:
        def squeezing(handle: HostHandle, host: Any) -> None:
            base = self.base.pop(handle.tag, 0)
            squeeze(handle, host)
            self.base[handle.tag] = base  # the next one gets back what this one would have

        return squeezing

    def look(self, event: Event) -> None:
        if isinstance(event, Warned):
            self.said.append(event.message)
        self.saved += isinstance(event, Saved)
        if isinstance(event, IterationEnded):
            self._obey()
            if time.monotonic() - self._written > STATUS_S:
                self._write("status.json", self._status())
                self._written = time.monotonic()

    def _status(self) -> dict[str, Any]:
        done = self.training_run.parts.counters
        return {
            "env_steps": done.env_steps,
            "learner_steps": done.learner_steps,
            "orders": self._done,
            "saved": self.saved,
            "restarts": self.cluster_actors.restarts,
            "acknowledged_rows": self.cluster_actors.acknowledged_rows,
            "lost_rows": self.cluster_actors.lost_rows,
            "lost": self.lost,
            "said": self.said,
            "sharing": self._sharing(),
            "hosts": [_host_status(handle) for handle in self.cluster_actors.handles],
        }

    def _sharing(self) -> dict[str, float]:
        member = self.training_run.parts.peers
        return member.stats() if member is not None else {}

    def _obey(self) -> None:
        path = self.folder / "orders"
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines[self._done :]:
            word, *rest = line.split()
            ORDERS[word](self, *rest)
            self._done += 1

    def stop(self) -> None:
        self.training_run._asked.add(Ask.STOP)

    def save(self) -> None:
        self.training_run._asked.add(Ask.CHECKPOINT)

    def note(self) -> None:
        for handle, columns in self._rows():
            self.noted[handle.tag] = _keys(columns)

    def kill(self, place: str) -> None:
        handle = self.cluster_actors.handles[int(place)]
        handles = self.cluster_actors.handles
        others = [None if b is handle else SaveShard(b.acknowledged.committed) for b in handles]
        before, restarts = self.cluster_actors.ask(others), self.cluster_actors.restarts
        assert handle.host is not None
        os.kill(handle.host.pid, signal.SIGKILL)
        deadline = time.monotonic() + BACK_S
        while self.cluster_actors.restarts == restarts or not handle.up:
            assert time.monotonic() < deadline, "no host came back"
            self.cluster_actors._tend()
            self.cluster_actors.wait_a_little()
        after = self.cluster_actors.ask(others)
        (own,) = self.cluster_actors.ask([SaveShard(0) if b is handle else None for b in handles])
        self.kills.append(
            {
                "others_same": all(
                    _same_leaves(one, other) for one, other in zip(before, after, strict=True)
                ),
                "leaves_finite": bool(np.isfinite(own.arrays["leaves"]).all()),
                "leaves_least": float(own.arrays["leaves"].min()),
                "leaves_sum": float(own.arrays["leaves"].sum()),
                "spread": handle.status.spread,
                "committed": own.numbers["committed"],
            }
        )

    def _rows(self) -> Iterator[tuple[HostHandle, dict[str, Any]]]:
        """What every shard holds now, beginning with its oldest row."""
        handles = list(self.cluster_actors.handles)
        answers = self.cluster_actors.ask([CopyRows(0) for _ in handles])
        for handle, answer in zip(handles, answers, strict=True):
            yield handle, dict(answer.columns)

    def report(self, stopped: Stopped) -> None:
        self.cluster_actors.ask([CopyRows(1 << 40) for _ in self.cluster_actors.handles])
        shards, keys, lanes = [], [], []
        known = {b.place: (b.tag, b.acknowledged) for b in self.cluster_actors.handles}
        status = self._status()  # of the same moment: more may come while rows are looked at
        for handle, columns in self._rows():
            tag, acknowledged = known[handle.place]
            keys.append(_keys(columns))
            lanes.append(_broken_lanes(columns))
            shards.append(
                {
                    "place": handle.place,
                    "tag": tag,
                    "base": self.base.setdefault(tag, 0),
                    "acknowledged": list(acknowledged),
                    "rows": len(columns["t"]),
                    "incarnations": _lives(columns),
                }
            )
        everything = np.concatenate(keys)
        self._write(
            "report.json",
            {
                **status,
                "reason": str(stopped.reason),
                "shards": shards,
                "twice": len(everything) - len(np.unique(everything, axis=0)),
                "broken_lanes": [lane for found in lanes for lane in found],
                "noted": self._missing(keys),
                "kills": self.kills,
            },
        )

    def _missing(self, keys: list[Any]) -> list[dict[str, int]]:
        """Of the rows that were noted: how many are nowhere now, by host worker."""
        there = {row.tobytes() for part in keys for row in part}
        return [
            {
                "tag": tag,
                "rows": len(noted),
                "missing": sum(row.tobytes() not in there for row in noted),
            }
            for tag, noted in self.noted.items()
        ]

    def _write(self, name: str, content: dict[str, Any]) -> None:
        scratch = self.folder / f".{name}"
        scratch.write_text(json.dumps(content))
        os.replace(scratch, self.folder / name)


ORDERS: dict[str, Any] = {
    "note": Witness.note,
    "save": Witness.save,
    "kill": Witness.kill,
    "stop": Witness.stop,
}


def _host_status(handle: HostHandle) -> dict[str, Any]:
    host = handle.host
    return {
        "place": handle.place,
        "tag": handle.tag,
        "actors": list(handle.actors),
        "incarnations": list(handle.incarnations),
        "address": host.address if host is not None else None,
        "pid": host.pid if host is not None else None,
        "up": handle.up,
        "absent": handle.absent,
        "acknowledged": list(handle.acknowledged),
    }


def _keys(columns: dict[str, Any]) -> Any:
    return np.stack([columns[name].astype(np.int64) for name in KEY], axis=1)


def _lives(columns: dict[str, Any]) -> list[list[int]]:
    return np.unique(np.stack([columns["actor"], columns["incarnation"]], axis=1), axis=0).tolist()  # type: ignore[no-any-return]


def _broken_lanes(columns: dict[str, Any]) -> list[list[int]]:
    """Lanes in which a row is missing, or out of order."""
    keys, end = _keys(columns), columns["end"]
    broken = []
    for lane in np.unique(keys[:, :3], axis=0):
        own = np.flatnonzero((keys[:, :3] == lane).all(axis=1))
        episode, t, over = keys[own, 3], keys[own, 4], end[own] > 0
        on = (np.diff(episode) == 0) & (np.diff(t) == 1) & ~over[:-1]
        anew = (np.diff(episode) == 1) & (t[1:] == 0) & over[:-1]
        if not (on | anew).all():
            broken.append(lane.tolist())
    return broken


def _same_leaves(before: Any, after: Any) -> bool:
    """Are the priorities of the rows of `before` as they were? There may be new rows."""
    capacity = len(before.arrays["leaves"])
    rows = np.arange(int(after.numbers["first"]), int(before.numbers["committed"])) % capacity
    closed = before.arrays["leaves"][rows] > 0  # others may have been closed since
    same = before.arrays["leaves"][rows] == after.arrays["leaves"][rows]
    return bool(closed.any() and same[closed].all())


def main(folder: Path, argv: list[str]) -> int:
    parser = Parser(prog="cluster_driver", description=__doc__)
    train.add_arguments(parser)
    args = parse(parser, argv)
    (config,) = train.plan(args)
    with session(
        config, RunRequest(resume=Path(args.source) if args.resume else None)
    ) as training_run:
        witness = Witness(training_run, folder)
        for event in training_run.events():
            witness.look(event)
            if isinstance(event, Stopped):
                witness.report(event)
    return training_run.interrupts.exit_code


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
