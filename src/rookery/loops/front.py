"""The front door in Python.

run = rookery.train("cartpole", env=my_env, callbacks=[...], seed=3)
run.policy.act(obs); run.metrics; run.run_dir

for event in rookery.events("cartpole"): ...          # the same run as an iterator

policy = rookery.load("runs/a")                       # or a file of `rookery export`
action, state = policy.act(obs)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beartype import beartype

from rookery.algos import Algorithm, build_algorithm
from rookery.config.load import load as load_config
from rookery.config.load import load_run
from rookery.config.schema import Backend, Config
from rookery.envs.entry import name_of
from rookery.envs.frames import remember
from rookery.envs.make import make
from rookery.envs.masks import refuse_empty
from rookery.envs.spaces import Codec
from rookery.errors import ConfigError
from rookery.event import Event, Reason, Stopped
from rookery.loops import parcel as parcels
from rookery.loops.driver import Callback
from rookery.loops.launch import (
    Request,
    conclude,
    finished,
    read_weights,
    session,
)
from rookery.loops.parcel import Parcel
from rookery.nets.arrays import load_arrays
from rookery.nets.ask import tensors
from rookery.report import jsonl
from rookery.types import Array, EnvSpec, Floats, Obs

Source = str | Path | Config


class Policy:
    """A trained policy, on the CPU. Takes and gives what the environment does."""

    def __init__(self, algorithm: Algorithm, codec: Codec, spec: EnvSpec, epsilon: float):
        self._algorithm, self._codec, self._spec, self._epsilon = algorithm, codec, spec, epsilon
        self._rng = np.random.default_rng(0)

    def act(self, obs: Any, state: Any = None, deterministic: bool = True) -> tuple[Any, Any]:
        """Returns the action for one observation, and the state to hand in with the next one.

        The state holds what a policy remembers: None at an episode's start, and always None for
        policies that see single observations.
        """
        seen, frames, memory = self._look(obs, state)
        refuse_empty(seen, self._spec)
        acted = self._algorithm.act(
            seen,
            self._rng,
            epsilon=0.0 if deterministic else self._epsilon,
            noise=not deterministic,
            memory=memory,
        )
        action = self._codec.decode_action(acted.action)[0]
        return action, None if frames is acted.memory else (frames, acted.memory)

    def scores(self, obs: Any, state: Any = None) -> Array:
        """Returns the numbers [n] whose largest is chosen; continuous actions as they are stored.

        Those of several choices lie side by side.
        """
        seen, _, memory = self._look(obs, state)
        cpu = torch.device("cpu")
        with torch.inference_mode():
            given = None if memory is None else torch.from_numpy(memory)
            return self._algorithm.scores(tensors(seen, cpu), given)[0][0].numpy()

    def _look(self, obs: Any, state: Any) -> tuple[Obs, Any, Floats | None]:
        """Returns what is seen, the frames to keep, and what is remembered."""
        leaves = self._spec.unpack(self._codec.encode_one(obs))
        frames, memory = state or (None, None)
        if self._spec.frame_stack > 1:
            frames = leaves = remember(frames, leaves, self._spec.frame_stack)
        if memory is None and self._algorithm.memory:
            memory = np.zeros((1, self._algorithm.memory), dtype=np.float32)
        return self._spec.pack(leaves), frames, memory


@dataclass(frozen=True)
class Run:
    """A finished run."""

    run_dir: Path
    answer: dict[str, Any]  # what `rookery train --json` prints
    policy: Policy

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Every line of the run's record, oldest first."""
        return jsonl.read(self.run_dir)


@beartype
def train(
    source: Source | None = None,
    *,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    seed: int | None = None,
    overrides: Sequence[str] = (),
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    exact: bool = False,
    init_from: str | None = None,
    console: bool = False,
) -> Run:
    """Trains to the end of the run and returns it.

    `source` is a scenario's name, the path of a YAML file, or a Config; `env` a Gymnasium id, an
    environment class, or a function that makes one. With `resume`, `source` is left out.
    """
    config = _config(
        source, env=env, seed=seed, overrides=overrides, run_dir=run_dir, resume=resume
    )
    if config.backend is Backend.SB3:
        raise ConfigError(
            "rookery.train returns a policy of Rookery's own, and backend sb3 has another; use "
            "`for event in rookery.events(...)`, or `rookery train`, and load model.zip with SB3"
        )
    request = Request(
        resume=Path(resume) if resume else None,
        exact=exact,
        init_from=init_from,
        factory=env,
        callbacks=callbacks,
        console=console,
    )
    done = finished(config, request)
    answer = done.answer if done else _train(config, request)
    return Run(Path(answer["run_dir"]), answer, load(answer["run_dir"], env=env))


def _train(config: Config, request: Request) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    with session(config, request) as driver:
        for event in driver.events():
            if isinstance(event, Stopped):
                answer = conclude(driver, event)
    if driver.interrupts.reason is Reason.INTERRUPTED:
        raise KeyboardInterrupt
    if driver.interrupts.reason is Reason.TERMINATED:
        raise SystemExit(driver.interrupts.exit_code)
    return answer


@beartype
def events(
    source: Source | None = None,
    *,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    seed: int | None = None,
    overrides: Sequence[str] = (),
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    exact: bool = False,
) -> Iterator[Event]:
    """Yields a run's events as they happen. Leaving the loop ends the run without a checkpoint."""
    config = _config(
        source, env=env, seed=seed, overrides=overrides, run_dir=run_dir, resume=resume
    )
    request = Request(
        resume=Path(resume) if resume else None, exact=exact, factory=env, callbacks=callbacks
    )
    with session(config, request) as driver:
        for event in driver.events():
            if isinstance(event, Stopped):
                conclude(driver, event)
            yield event


@beartype
def load(run: str | Path, *, checkpoint: str | int = "best", env: Any = None) -> Policy:
    """Loads a run's policy: the best one unless told `last` or a number of env steps.

    `run` may also be a file that `rookery export` wrote, which holds one policy and needs neither
    the run folder nor the environment.
    """
    path = Path(run)
    if path.is_file():
        return _unpacked(path, checkpoint, env)
    weights, config = read_weights(path, str(checkpoint)), load_run(path)
    envs = make(config.env, 1, factory=env)
    envs.close()
    return policy_of(Parcel(config, envs.codec, envs.spec, weights.arrays))


def policy_of(parcel: Parcel) -> Policy:
    """Builds the policy that a parcel describes."""
    torch.set_num_threads(parcel.config.learner.threads)
    algorithm = build_algorithm(parcel.config, parcel.spec)
    load_arrays(algorithm.acting, parcel.arrays)
    return Policy(algorithm, parcel.codec, parcel.spec, parcel.config.randomness.last)


def _unpacked(path: Path, checkpoint: str | int, env: Any) -> Policy:
    if checkpoint != "best" or env is not None:
        raise ConfigError(
            f"{str(path)!r} is a file with one policy in it, and neither checkpoint nor env mean "
            "anything to it; leave them out, or give the run folder"
        )
    return policy_of(parcels.read(path))


def _config(
    source: Source | None,
    *,
    env: Any,
    seed: int | None,
    overrides: Sequence[str],
    run_dir: str | Path | None,
    resume: str | Path | None,
) -> Config:
    changes: dict[str, Any] = {} if seed is None else {"run.seed": seed}
    if run_dir is not None:
        changes["run.run_dir"] = str(run_dir)
    if resume is not None:
        return load_run(Path(resume), overrides=overrides, changes=changes)
    if env is not None:
        changes["env.id"] = name_of(env)
    return load_config(source, overrides=overrides, changes=changes)
