"""One run of the sharing study after another: reads jobs from standard input, a line of JSON each.

    {"task": "cartpole", "arm": "self_heavy 0.2", "seed": 3, "pool": FOLDER, "run_dir": FOLDER}

Training and judging happen in this process, and nothing stops early, so that runs that share keep
step. A run folder is left that `rookery compare` reads, with `study.json` beside the metrics: the
return in a perturbed environment, and what was borrowed.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from rookery.algorithms import build_algorithm
from rookery.config.load import RUN_FILE, dump, load
from rookery.config.schema import BackendName, Config, SharingConfig
from rookery.envs.make import make
from rookery.evaluation.evaluator import Evaluator
from rookery.event import Counters, Evaluated, IterationEnded, Reason, Stopped
from rookery.networks.named_arrays import load_arrays
from rookery.report.trackers.jsonl import Jsonl
from rookery.training.build import build_parts
from rookery.training.loops import sync

PERTURBED_EPISODES = 50


class Task(NamedTuple):
    """What is learned, for how long, and how its world is changed for the last exam."""

    scenario: str
    changes: dict[str, Any]
    perturb: Callable[[gym.Env[Any, Any]], None]


def _longer_pole(env: gym.Env[Any, Any]) -> None:
    cart: Any = env.unwrapped
    cart.length *= 2.0
    cart.polemass_length = cart.masspole * cart.length


def _heavier_arm(env: gym.Env[Any, Any]) -> None:
    arm: Any = env.unwrapped
    arm.LINK_MASS_2 = 1.5


def _stronger_gravity(env: gym.Env[Any, Any]) -> None:
    pendulum: Any = env.unwrapped
    pendulum.g = 12.0


TASKS = {
    "cartpole": Task(
        "cartpole",
        {"run.env_steps": 8_000, "eval.period": 500, "run.mode": "sync"},
        _longer_pole,
    ),
    "acrobot": Task(
        "acrobot",
        {"run.env_steps": 16_000, "eval.period": 1_000, "eval.episodes": 10, "run.mode": "sync"},
        _heavier_arm,
    ),
    "pendulum": Task(
        "sb3-sac",
        {"run.env_steps": 3_500, "eval.period": 500, "eval.episodes": 10},
        _stronger_gravity,
    ),
}

ARMS = {
    "local_only": ("local_only", 0.0),
    "self_heavy 0.2": ("self_heavy", 0.2),
    "self_heavy 0.5": ("self_heavy", 0.5),
    "uniform 0.2": ("uniform", 0.2),
    "weighted 0.2": ("weighted", 0.2),
    "newest 0.2": ("newest", 0.2),
}


class Mark(NamedTuple):
    """How good a run is after so many env steps."""

    env_steps: int
    returns: tuple[float, ...]


class Exam(NamedTuple):
    """What a run left."""

    perturbed: float
    sharing: dict[str, float]


def config_of(job: dict[str, Any]) -> Config:
    task, (strategy, ratio) = TASKS[job["task"]], ARMS[job["arm"]]
    native = task.scenario != "sb3-sac"
    changes = task.changes | {
        "run.seed": job["seed"],
        "report.tag": job["arm"],
        "sharing.pool": job["pool"],
        "sharing.strategy": strategy,
        "sharing.cross_sample_ratio": ratio,
        "env.check": False,
    }
    return load(task.scenario, changes=changes | ({"run.engine": "inline"} if native else {}))


def learn_dqn(config: Config, task: Task) -> Iterator[Mark | Exam]:
    """A run of our own."""
    parts = build_parts(config, run_dir=Path(f"{config.name}-{config.run.seed}"))
    judge = Evaluator(
        lambda num: make(config.env, num),
        build_algorithm(config, parts.spec),
        episodes=config.eval.episodes,
    )
    passed = 0
    for event in sync(parts):
        if not isinstance(event, IterationEnded):
            continue
        if parts.counters.env_steps // config.eval.period > passed:
            passed += 1
            load_arrays(judge.algorithm.acting, parts.learner.weights())
            returns = judge.run(seed=1_000 * config.run.seed + passed).returns
            yield Mark(passed * config.eval.period, tuple(returns))
        if parts.counters.env_steps >= config.run.env_steps:
            break
    exam = Evaluator(
        lambda num: make(config.env, num, factory=perturbed(config, task)),
        judge.algorithm,
        episodes=PERTURBED_EPISODES,
    )
    score = float(np.mean(exam.run(seed=config.run.seed).returns))
    sharing = parts.peers.stats() if parts.peers else {}
    for part in (exam, judge, parts):
        part.close()
    yield Exam(score, sharing)


def learn_sb3(config: Config, task: Task) -> Iterator[Mark | Exam]:
    """A run of SB3's."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv

    from rookery.sb3.models import build, pooled_replay

    def scores(make_one: Callable[[], Any], episodes: int, seed: int) -> tuple[float, ...]:
        envs = DummyVecEnv([make_one] * min(10, episodes))
        envs.seed(seed)
        found = evaluate_policy(
            model, envs, episodes, deterministic=True, return_episode_rewards=True, warn=False
        )
        envs.close()
        return tuple(float(score) for score in found[0])

    envs = DummyVecEnv([lambda: gym.make(config.env.id)])
    with pooled_replay(config, f"{config.name}-{config.run.seed}") as replay:
        model: Any = build(
            config,
            envs,
            capacity=config.replay.capacity,
            device=torch.device("cpu"),
            seed=config.run.seed,
            replay=replay,
        )
        for mark in range(config.eval.period, config.run.env_steps + 1, config.eval.period):
            model.learn(config.eval.period, reset_num_timesteps=False)
            seed = 1_000 * config.run.seed + mark
            yield Mark(mark, scores(lambda: gym.make(config.env.id), config.eval.episodes, seed))
        buffer = model.replay_buffer
        sharing = buffer.get_stats() if hasattr(buffer, "get_stats") else {}
    last = scores(perturbed(config, task), PERTURBED_EPISODES, config.run.seed)
    yield Exam(float(np.mean(last)), {k: v for k, v in sharing.items() if isinstance(v, float)})


def perturbed(config: Config, task: Task) -> Callable[[], Any]:
    def one() -> Any:
        env = gym.make(config.env.id)
        task.perturb(env)
        return env

    return one


LEARN = {BackendName.ROOKERY: learn_dqn, BackendName.SB3: learn_sb3}


def study(job: dict[str, Any]) -> None:
    config, task, began = config_of(job), TASKS[job["task"]], time.monotonic()
    run_dir = Path(job["run_dir"])
    run_dir.mkdir(parents=True)
    (run_dir / RUN_FILE).write_text(dump(_without_pool(config)))
    record = Jsonl(run_dir)
    for found in LEARN[config.backend](config, task):
        if isinstance(found, Exam):
            about = {**found._asdict(), "wall_s": round(time.monotonic() - began, 1)}
            (run_dir / "study.json").write_text(json.dumps(about))
            continue
        done = Counters(found.env_steps, 0, 0)
        record.write(
            Evaluated(
                counters=done,
                version=0,
                wall_s=time.monotonic() - began,
                returns=found.returns,
                lengths=(),
                success_rate=None,
                best=False,
                passed=False,
            )
        )
    wall_s = time.monotonic() - began
    done = Counters(config.run.env_steps, 0, 0)
    record.write(Stopped(done, Reason.ENV_STEPS, wall_s, wall_s, None, False, ""))
    record.close()


def _without_pool(config: Config) -> Config:
    """A record of settings names no folder that is gone by the time it is read."""
    shared = config.sharing
    kept = SharingConfig(strategy=shared.strategy, cross_sample_ratio=shared.cross_sample_ratio)
    return replace(config, sharing=kept)


def main() -> None:
    torch.set_num_threads(1)
    print("ready", flush=True)
    for text in sys.stdin:
        study(json.loads(text))
        print("done", flush=True)


if __name__ == "__main__":
    main()
