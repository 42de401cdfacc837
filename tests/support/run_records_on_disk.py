"""Run folders with scores of our choosing, written by the sinks that write real ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.config.load import RUN_FILE, dump, load
from rookery.event import Counters, Evaluated, Logged, Reason, Stopped
from rookery.report.trackers.jsonl import Jsonl

CORRIDOR, CARTPOLE = "rookery.envs.toy.basic:Corridor", "CartPole-v1"


def record(
    folder: Path,
    scores: Mapping[int, float],
    *,
    reason: Reason | None = Reason.ENV_STEPS,
    last_step: int | None = None,
    **changes: Any,
) -> Path:
    """Makes a run that was evaluated at these env steps; `env__id` is written env.id."""
    settings = {"eval.period": 1_000, "run.env_steps": 4_000, "eval.target": 1.0}
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    folder.mkdir(parents=True)
    (folder / RUN_FILE).write_text(dump(load("corridor", changes=settings)))
    end = Counters(max([*scores, last_step or 0]))
    sink = Jsonl(folder)
    for step, score in scores.items():
        sink.write(Logged(Counters(step), 1.0, {"rollout/ep_rew_mean": score - 1}))
        sink.write(Evaluated(Counters(step), 1, 1.0, (score, score), (5, 5), None, False, False))
    if reason is None:
        sink.write(Logged(end, 2.0, {}))
    else:
        solved = reason is Reason.TARGET
        sink.write(Stopped(end, reason, 2.0, 2.0, max(scores.values(), default=None), solved, ""))
    sink.close()
    return folder


def group(parent: Path, tag: str, finals: list[float], **changes: Any) -> None:
    """Makes a group of runs that rise to their final scores in four evaluations."""
    for seed, final in enumerate(finals):
        scores = {1_000 * k: final * k / 4 for k in (1, 2, 3, 4)}
        record(parent / f"{tag}-{seed}", scores, report__tag=tag, run__seed=seed, **changes)
