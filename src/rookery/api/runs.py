"""Python API of training runs: `train`, `events` and `load`.

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

from beartype import beartype

from rookery.actors.policy import Policy
from rookery.checkpoints.load_weights import read_weights
from rookery.config.load import load as load_config
from rookery.config.load import load_run
from rookery.config.schema import Config
from rookery.envs.lookup import name_of
from rookery.envs.make import make
from rookery.errors import ConfigError
from rookery.evaluation.backend import Callback, RunRequest
from rookery.evaluation.evaluation_process import build_policy
from rookery.event import Event, Stopped
from rookery.export import bundle as bundles
from rookery.export.bundle import PolicyBundle, policy_of
from rookery.report.trackers import jsonl
from rookery.training.launch import conclude, finished, session

Source = str | Path | Config


@dataclass(frozen=True)
class Run:
    """A finished training run: its folder, its result as a dict (`answer`), and its best policy."""

    run_dir: Path
    answer: dict[str, Any]  # the JSON object that `rookery train --json` prints
    policy: Policy

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All records of the run's metrics.jsonl, such as evaluations, in the order of writing."""
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
    """Trains an agent until the run ends, and returns the finished run.

    `source` is the name of a scenario (packaged training configuration), the name of an algorithm
    such as "sac", which trains with its defaults in `env`, the path of a YAML file, or a Config;
    `env` a Gymnasium id, an environment class, or a function that makes one. With `resume`, the
    folder of a stopped run, `source` is left out. Invalid arguments raise `ConfigError`; Ctrl+C
    saves a checkpoint and raises KeyboardInterrupt.
    """
    config = _config(source, env, seed, overrides, run_dir, resume)
    request = RunRequest(
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


def _train(config: Config, request: RunRequest) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    with session(config, request) as run:
        for event in run.events():
            if isinstance(event, Stopped):
                answer = conclude(run.run_dir, event)
    run.interrupts.leave()
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
    """Trains an agent and yields the events of the run, from `Started` to `Stopped`.

    Closing the iterator early ends the run without saving it. Arguments are as in `rookery.train`.
    """
    config = _config(source, env, seed, overrides, run_dir, resume)
    request = RunRequest(
        resume=Path(resume) if resume else None, exact=exact, factory=env, callbacks=callbacks
    )
    with session(config, request) as run:
        for event in run.events():
            if isinstance(event, Stopped):
                conclude(run.run_dir, event)
            yield event


@beartype
def load(run: str | Path, *, checkpoint: str | int = "best", env: Any = None) -> Policy:
    """Loads the trained policy of a run folder from a checkpoint.

    `checkpoint` is `best`, `last` or the number of env steps of the checkpoint. `run` may also be a
    file of `rookery export`, which holds one policy and needs neither the run folder nor the
    environment.
    """
    path = Path(run)
    if path.is_file():
        return _load_bundle(path, checkpoint, env)
    weights, config = read_weights(path, str(checkpoint)), load_run(path)
    envs = make(config.env, 1, factory=env)
    envs.close()
    content = PolicyBundle(config, envs.codec, envs.spec, weights.arrays)
    return policy_of(content, build_policy(config, envs, env))


def _load_bundle(path: Path, checkpoint: str | int, env: Any) -> Policy:
    if checkpoint != "best" or env is not None:
        raise ConfigError(
            f"{str(path)!r} is a file with one policy, for which checkpoint and env have no "
            "meaning; leave them out, or give the run folder"
        )
    return policy_of(bundles.read(path))


def _config(
    source: Source | None,
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
