"""An agent in Python: an algorithm with its settings in an environment, as users of SB3 know it.

    agent = rookery.SAC("Pendulum-v1", lr=3e-4, seed=1)
    agent.train(env_steps=20_000)            # a run folder, as of `rookery train`
    agent.evaluate(episodes=20)              # mean return
    action, state = agent.predict(obs)
    agent.save("pendulum.safetensors")
    agent = rookery.SAC.load("pendulum.safetensors")

`algorithm_agents.py` has a class for each algorithm.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np

from rookery.actors.policy import Policy, PolicyState
from rookery.api.arguments import argument_names
from rookery.api.runs import Run, load, train
from rookery.checkpoints import run_folder
from rookery.checkpoints.checkpoint import newest
from rookery.checkpoints.saver import CHECKPOINTS
from rookery.config.algorithms import settings_of
from rookery.config.checks import nearest
from rookery.config.load import RUN_FILE, load_run
from rookery.config.load import load as load_config
from rookery.config.other_libraries import NAMES_ELSEWHERE
from rookery.config.schema import Config
from rookery.config.section import hints
from rookery.envs.lookup import name_of
from rookery.errors import ConfigError, ProtocolError
from rookery.evaluation.backend import Callback
from rookery.evaluation.evaluate_run import evaluate_run
from rookery.event import Event, Started
from rookery.export import bundle
from rookery.export.export_policy import export
from rookery.report.trackers import jsonl

EnvSource = str | type[gym.Env[Any, Any]] | Callable[..., gym.Env[Any, Any]]

# Keyword arguments that all agents take, with the settings they stand for. An algorithm's own
# settings go by their own names.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "lr": "learner.lr",
        "critic_lr": "learner.critic_lr",
        "lr_decay": "learner.lr_decay",
        "max_grad_norm": "learner.max_grad_norm",
        "device": "learner.device",
        "batch_size": "replay.batch_size",
        "capacity": "replay.capacity",
        "learning_starts": "replay.learning_starts",
        "samples_per_insert": "replay.samples_per_insert",
        "sampling": "replay.sampling",
        "hidden": "net.hidden",
        "critic_hidden": "net.critic_hidden",
        "activation": "net.activation",
        "init": "net.init",
        "mode": "run.mode",
        "actors": "actor.num",
        "envs": "actor.envs",
        "chunk": "actor.chunk",
        "normalize_obs": "env.normalize_obs",
        "normalize_reward": "env.normalize_reward",
        "env_kwargs": "env.kwargs",
    }
)


class Agent:
    """An algorithm in an environment. It is trained in a run folder, which `run_dir` names."""

    algorithm: ClassVar[str]  # as in `rookery list`

    def __init__(
        self,
        env: EnvSource,
        *,
        seed: int = 0,
        run_dir: str | Path | None = None,
        overrides: Sequence[str] = (),
        **settings: object,
    ) -> None:
        """Checks the settings; nothing is built before the agent is trained.

        `env` is a Gymnasium id, an environment class or a function that makes one. `overrides` are
        further settings as after `--set`, such as `eval.period=5000`. Without `run_dir`, the first
        `train` makes a new folder in `runs`. Raises ConfigError for settings that do not exist or
        do not fit.
        """
        self.env = env
        changes = {SETTINGS.get(name, f"algo.{name}"): value for name, value in settings.items()}
        changes |= {"name": self.algorithm, "algo.name": self.algorithm}
        changes |= {"run.seed": seed, "env.id": name_of(env)}
        with argument_names(self._arguments()):
            self._refuse_unknown(settings)
            self.config: Config = load_config(overrides=overrides, changes=changes)
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._policy: Policy | None = None

    def __repr__(self) -> str:
        folder = "" if self.run_dir is None else f", run_dir={str(self.run_dir)!r}"
        return f"{type(self).__name__}({self.config.env.id!r}{folder})"

    @classmethod
    def _arguments(cls) -> dict[str, str]:
        """Returns the keyword arguments, by the settings that they stand for."""
        own = {f"algo.{name}": name for name in hints(settings_of(cls.algorithm)) if name != "name"}
        return {"run.seed": "seed"} | {key: name for name, key in SETTINGS.items()} | own

    def _refuse_unknown(self, settings: Mapping[str, object]) -> None:
        known = [*self._arguments().values(), "run_dir", "overrides"]
        for name in settings:
            if name not in known:
                near, elsewhere = nearest(name, known), NAMES_ELSEWHERE.get(name)
                similar = f"did you mean {near!r}? " if near else ""
                raise ConfigError(
                    f"{type(self).__name__} has no argument {name!r}; "
                    f"{f'Rookery calls it {elsewhere}. ' if elsewhere else similar}"
                    f"Allowed: {', '.join(known)}; overrides takes any other setting"
                )

    def train(
        self,
        env_steps: int | float,
        *,
        target: float | None = None,
        minutes: float | None = None,
        callbacks: Sequence[Callback] = (),
        console: bool = True,
    ) -> Run:
        """Trains for this many further env steps, and returns the finished run.

        Training ends earlier when an evaluation reaches the score `target`, or after this many
        `minutes`; without them the agent's settings decide. Ctrl+C saves a checkpoint and raises
        KeyboardInterrupt. A second call continues the run from its newest checkpoint, as
        `rookery train --resume` does, also after an interrupt. Of a run that has reached its target
        only the weights are left: then a new run begins with them, in a new folder.
        """
        begin, played, took = self._beginning()
        limits = {
            "run.env_steps": played + int(env_steps),
            "eval.target": self.config.eval.target if target is None else target,
            "run.minutes": self.config.run.minutes if minutes is None else minutes + took,
        }
        with argument_names(self._arguments()):
            run = train(
                **begin,
                env=None if isinstance(self.env, str) else self.env,
                callbacks=[self._note_folder, *callbacks],
                overrides=[f"{k}={'null' if v is None else v}" for k, v in limits.items()],
                console=console,
            )
        self.run_dir, self._policy = run.run_dir, run.policy
        return run

    def _beginning(self) -> tuple[dict[str, Any], int, float]:
        """Returns arguments of `rookery.train` for where to begin; its env steps and minutes."""
        if self.run_dir is None and self._policy is not None:
            raise ProtocolError(
                "this agent was loaded from a file, which holds no more than what acts; load it "
                "from its run folder to train it further"
            )
        if self.run_dir is None or not (self.run_dir / RUN_FILE).is_file():
            return {"source": self.config, "run_dir": self.run_dir}, 0, 0.0
        answer = run_folder.result_of(self.run_dir)
        if answer is not None and answer["solved"]:  # it ended with its weights alone
            return {"source": self.config, "init_from": str(self.run_dir)}, 0, 0.0
        found = newest(self.run_dir / CHECKPOINTS).found
        played = 0 if found is None else found.env_steps
        times = [e.get("wall_s", 0.0) for e in jsonl.read(self.run_dir) if e["env_steps"] <= played]
        return {"resume": self.run_dir}, played, max(times, default=0.0) / 60

    def _note_folder(self, event: Event) -> None:
        if isinstance(event, Started):
            self.run_dir = Path(event.run_dir)

    def evaluate(
        self, episodes: int = 20, *, seed: int = 0, deterministic: bool | None = None
    ) -> dict[str, Any]:
        """Plays episodes with the best checkpoint; returns `mean_return`, `std_return` and more.

        `deterministic` is as in `predict`.
        """
        return evaluate_run(
            self._folder(),
            episodes=episodes,
            seed=seed,
            deterministic=deterministic,
            factory=None if isinstance(self.env, str) else self.env,
        )

    def predict(
        self, obs: Any, state: PolicyState | None = None, deterministic: bool | None = None
    ) -> tuple[Any, PolicyState | None]:
        """Returns the action for one observation, and the state to pass with the next one.

        With `deterministic` None, the policy acts as it is evaluated: greedily, or by sampling if
        the algorithm was trained for that.
        """
        space = self.policy.codec.observation_space
        if space.shape is not None and np.shape(obs) != space.shape:
            raise ConfigError(
                f"predict takes one observation, of shape {space.shape}, got {np.shape(obs)}; call "
                "it once for each of several"
            )
        return self.policy.act(obs, state, deterministic)

    @property
    def policy(self) -> Policy:
        """The best policy so far."""
        if self._policy is None:
            raise ProtocolError(
                f"this {type(self).__name__} has not been trained; call train(env_steps=...) first"
            )
        return self._policy

    def save(self, path: str | Path) -> Path:
        """Writes the best policy to one safetensors file, which needs no run folder."""
        out = Path(path)
        export(self._folder(), out, factory=None if isinstance(self.env, str) else self.env)
        return out

    @classmethod
    def load(cls, path: str | Path, *, env: EnvSource | None = None) -> Self:
        """Loads an agent from a run folder, or from a file that `save` wrote.

        An agent from a run folder can be trained further; one from a file can only act. `env` is
        needed if the environment was given as a function or class that has no importable name.
        """
        path = Path(path)
        if not path.exists():
            raise ConfigError(
                f"there is no agent at {str(path)!r}; give a file that save() wrote, or the folder "
                "of a run"
            )
        config = bundle.read(path).config if path.is_file() else load_run(path)
        if config.algo.name != cls.algorithm:
            raise ConfigError(
                f"{path} was trained with {config.algo.name}, and {cls.__name__} is "
                f"{cls.algorithm}; load it with the class of its algorithm, or with rookery.load"
            )
        agent = cls.__new__(cls)
        agent.config, agent.env = config, config.env.id if env is None else env
        agent.run_dir = None if path.is_file() else path
        agent._policy = load(path, env=None if path.is_file() else env)
        return agent

    def _folder(self) -> Path:
        if self.run_dir is None or not self.run_dir.is_dir():
            raise ProtocolError(
                f"this {type(self).__name__} has no run folder; call train(env_steps=...) first, "
                "or load the agent from its run folder"
            )
        return self.run_dir
