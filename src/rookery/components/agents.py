"""Agents: an algorithm of the table, its learner, and gradients apart from steps.

Batches are dictionaries of arrays, as buffers give them, or the `Batch` of a run's own replay.
"""

from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
import torch
from beartype.vale import IsInstance
from torch import Tensor

from rookery import seeding
from rookery.actors.policy import NONE, InferencePolicy, checked, recipe
from rookery.algorithms import build_algorithm
from rookery.api.dqn_agent import FORMAT, read, write
from rookery.components.experience import batch_of
from rookery.components.protocols import Arrays, Evaluation
from rookery.config.algorithms import entry_of
from rookery.config.load import as_dict
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.errors import CheckpointError, ConfigError
from rookery.evaluation.evaluator import Evaluator
from rookery.learner.gradients import ComputedGradients, GradientLearner
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import load_arrays
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.types import Array, ArrayBatch, Batch, EnvSpec
from rookery.version import __version__

if TYPE_CHECKING:
    from rookery.components.async_loop import Pump

    GivenBatch: TypeAlias = Mapping[str, Any] | ArrayBatch
else:  # beartype, which checks it, does not support generic named tuples
    GivenBatch = Mapping[str, Any] | Annotated[tuple, IsInstance[Batch]]

WINDOW = 100  # learner steps in the running means
SETTLED = {  # setting → the argument that decides about it
    "algo.name": "algorithm",
    "learner.lr": "lr",
    "learner.device": "device",
    "replay.batch_size": "batch_size",
    "algo.target_period": "target_update_frequency",
    "run.seed": "seed",
}
BEST = {"reward": max, "loss": min}  # metric → which end of it is good


class DistributedAgent:
    """Learns from batches; acts; gives its gradients to whoever steps.

    agent = DistributedAgent("dqn", env="CartPole-v1", settings={"net.hidden": [64]})
    agent.learn_from_batch(pool.sample_batch(agent.batch_size))         # a step here, or

    gradients = agent.compute_gradients(batch)                          # a step by a server
    server.push_gradients("worker_1", gradients)
    agent.set_policy_parameters(server.get_parameters().arrays)

    agent.evaluate_policy(10).reward; agent.save_checkpoint("agent")

    `algorithm` is one of `rookery list`. `update_frequency` is env steps for each learner step,
    which loops keep to; `target_update_frequency` learner steps between two copies into target
    networks, where an algorithm copies them. `settings` are those of a run, by their dotted names.
    """

    @checked
    def __init__(
        self,
        algorithm: str = "dqn",
        lr: float = 0.001,
        batch_size: int = 32,
        update_frequency: int = 4,
        target_update_frequency: int = 100,
        use_gpu: bool = False,
        device: str | None = None,
        *,
        env: Any = "CartPole-v1",
        seed: int = 0,
        settings: Mapping[str, Any] = NONE,
    ):
        given = {
            "algo.name": algorithm,
            "learner.lr": lr,
            "learner.device": device or ("cuda:0" if use_gpu else "cpu"),
            "replay.batch_size": batch_size,
            "run.seed": seed,
        }
        if hasattr(entry_of(algorithm).settings, "target_period"):
            given["algo.target_period"] = target_update_frequency
        _refuse_odd(settings, batch_size, update_frequency, target_update_frequency)
        usual = _usual(settings, batch_size, update_frequency)
        self.recipe = recipe(env, {"name": "agent", **usual, **given})
        self.spec, self.codec = self.recipe.spaces()
        self.lr, self.batch_size, self.update_frequency = lr, batch_size, update_frequency
        self.learner = _learner(self.recipe.config, self.spec)
        self._acting = InferencePolicy(self.recipe, self.spec, self.codec)
        self._stale = True  # the learner's parameters are newer than those that act
        self._found: ComputedGradients | None = None  # the gradients that were computed last
        self._owed = 0  # gradients that nobody has stepped by, as far as we know
        self._evaluation: Evaluation | None = None
        self._evaluations = 0
        self.reset_training_stats()

    @property
    def config(self) -> Config:
        """The settings of a run like this agent."""
        return self.recipe.config

    @property
    def learner_steps(self) -> int:
        """How often the parameters were stepped, here or by a server."""
        return self.learner.learner_steps

    @property
    def epsilon(self) -> float:
        """The share of random actions: falls with learner steps, `update_frequency` steps each."""
        random = self.config.randomness
        schedule = Schedule(random.first, random.last, random.decay)
        return schedule.at(self.learner_steps * self.update_frequency / random.steps)

    # Learning.

    @checked
    def learn_from_batch(self, batch: GivenBatch) -> dict[str, Any]:
        """Takes one learner step; returns metrics and `td_error` [B], {} where it was skipped."""
        facts = self.learner.learn(self._batch(batch))
        self._stale = True
        return self._noted(facts.td_error, facts.metrics)

    @checked
    def compute_gradients(self, batch: GivenBatch) -> Arrays:
        """Returns the batch's gradients by name, clipped; {} where they are not finite.

        Nothing is stepped. `update_policy()` steps by them here; whoever has them stepped by a
        server hands the parameters back to `set_policy_parameters`.
        """
        self._found = self.learner.gradients(self._batch(batch))
        if self._found is None:
            return {}
        self._owed += 1
        self._noted(self._found.td_error, self._found.metrics)
        return self._found.arrays

    @property
    def td_error(self) -> Array | None:
        """[B], of the batch that gradients were computed of last: what rows are ranked by."""
        return None if self._found is None else self._found.td_error

    @checked
    def apply_gradients(self, gradients: Mapping[str, Any]) -> None:
        """Takes a learner step by these gradients, with the agent's own optimizer."""
        self.learner.take(gradients)
        self._owed, self._stale = 0, True

    @checked
    def update_policy(self) -> int:
        """Takes a learner step by the gradients that were computed last; returns learner steps."""
        if self._found is None:
            raise ConfigError(
                "there are no gradients to step by, or they were not finite; call "
                "compute_gradients first, or learn_from_batch for both at once"
            )
        self.apply_gradients(self._found.arrays)
        self._found = None
        return self.learner_steps

    def _batch(self, batch: GivenBatch) -> ArrayBatch:
        return batch_of(batch, self.config, self.spec, self.codec)

    def _noted(self, td_error: Array | Tensor | None, metrics: Mapping[str, Any]) -> dict[str, Any]:
        if not metrics:
            return {}
        said = {name: float(value) for name, value in metrics.items()}  # waits for the device
        self._losses.append(said["loss"])
        if td_error is not None:
            self._errors.append(float(np.abs(td_error).mean()))
        self._batches += 1
        return {**said, "td_error": td_error}

    # Parameters.

    @checked
    def get_policy_parameters(self) -> Arrays:
        """Returns copies of everything that is trained, by name: where a server begins."""
        return self.learner.parameters()

    @checked
    def set_policy_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Takes parameters over, as a server has stepped them.

        That counts as a learner step for each of the gradients that were computed here since the
        last ones; target networks follow accordingly. Where there were none, learning begins with
        these parameters.
        """
        self.learner.load(parameters, self._owed)
        self._owed, self._stale = 0, True

    @checked
    def get_weights(self) -> Arrays:
        """Returns copies of what acts, by the names that an `InferencePolicy` has."""
        return {name: array.copy() for name, array in self.learner.weights().items()}

    @checked
    def act(self, obs: Any, epsilon: float = 0.0) -> Any:
        """Returns the action for one observation; random with probability `epsilon`."""
        if self._stale:
            self._acting.set_weights(self.learner.weights())
            self._stale = False
        return self._acting.act(obs, epsilon)

    @checked
    def policy(self) -> InferencePolicy:
        """Returns a policy of its own with these parameters, to act elsewhere."""
        policy = InferencePolicy(self.recipe, self.spec, self.codec)
        policy.set_weights(self.learner.weights())
        return policy

    @checked
    def evaluate_policy(self, num_episodes: int = 10) -> Evaluation:
        """Plays so many episodes without exploring."""
        config, factory = self.recipe
        algorithm = build_algorithm(config, self.spec)
        load_arrays(algorithm.acting, self.learner.weights())
        judge = Evaluator(
            lambda num: make(config.env, num, factory=factory), algorithm, episodes=num_episodes
        )
        number, self._evaluations = self._evaluations, self._evaluations + 1
        seed = seeding.integer(config.run.seed, Role.EVALUATOR, index=number)
        try:
            judged = judge.run(seed=seed, timeout_s=config.eval.timeout_s)
        finally:
            judge.close()
        returns = np.array(judged.returns)
        self._evaluation = Evaluation(
            float(returns.mean()), float(returns.std()), judged.returns, judged.lengths
        )
        return self._evaluation

    # Files and numbers.

    @checked
    def save_checkpoint(self, path: str | Path) -> Path:
        """Writes networks, optimizer and settings into one file, as `DqnAgent.save` does."""
        numbers, arrays = self.learner.state()
        header = {
            "format": FORMAT,
            "rookery": __version__,
            "config": as_dict(self.config),
            "learner": numbers,
        }
        return write(path, header, arrays)

    @checked
    def load_checkpoint(self, path: str | Path) -> None:
        """Goes on from what an agent with the same settings saved."""
        saved = read(path)
        if (theirs := saved.config.algo.name) != self.config.algo.name:
            raise CheckpointError(
                f"{path} holds an agent of {theirs}, this one is of {self.config.algo.name}; make "
                "an agent of the algorithm that was saved"
            )
        self.restore(saved.numbers, saved.arrays)

    @checked
    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Returns JSON-ready numbers and arrays, for a loop's checkpoint."""
        return self.learner.state()

    @checked
    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Goes on from what `state` returned."""
        self.learner.restore(numbers, arrays)
        self._owed, self._stale = 0, True

    @checked
    def get_training_stats(self) -> dict[str, Any]:
        """Returns counts, and means over the last 100 batches (nan before the first)."""
        return {
            "algorithm": self.config.algo.name,
            "learner_steps": self.learner_steps,
            "batches": self._batches,
            "skipped": self.learner.skipped,
            "epsilon": self.epsilon,
            "loss": float(np.mean(self._losses)) if self._losses else float("nan"),
            "td_error": float(np.mean(self._errors)) if self._errors else float("nan"),
            "reward": float("nan") if self._evaluation is None else self._evaluation.reward,
        }

    @checked
    def reset_training_stats(self) -> None:
        """Forgets means and counts; learner steps go on."""
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._errors: deque[float] = deque(maxlen=WINDOW)
        self._batches = 0
        self._evaluation = None


class AsyncAgent(DistributedAgent):
    """An agent whose workers learn in the background (A3C, Mnih et al. 2016).

    agent = AsyncAgent("a2c", num_workers=4, env="CartPole-v1")
    agent.start_async_training()                 # returns at once
    agent.get_training_stats()["gradients"]; agent.act(obs)
    agent.stop_async_training()                  # the agent has what was learned

    Workers are those of `AsyncMainLoop`: processes with environments and networks of their own.
    """

    @checked
    def __init__(
        self,
        algorithm: str = "a2c",
        lr: float = 0.001,
        batch_size: int = 32,
        update_frequency: int = 4,
        target_update_frequency: int = 100,
        use_gpu: bool = False,
        device: str | None = None,
        num_workers: int = 4,
        *,
        env: Any = "CartPole-v1",
        seed: int = 0,
        settings: Mapping[str, Any] = NONE,
    ):
        super().__init__(
            algorithm,
            lr,
            batch_size,
            update_frequency,
            target_update_frequency,
            use_gpu,
            device,
            env=env,
            seed=seed,
            settings=settings,
        )
        self.env_factory = env
        self.num_workers = num_workers
        self.settings = {key: v for key, v in settings.items() if key.startswith("env.")}
        self._pump: Pump | None = None

    @checked
    def start_async_training(self, parameter_server: Any = None) -> None:
        """Starts the workers. Without a server the agent has one that steps as it would itself.

        Call it from the main thread: workers end with the thread that started them.
        """
        if self._pump is not None:
            raise ConfigError(
                "this agent is training already; call stop_async_training before you start again"
            )
        from rookery.components.async_loop import Pump

        self._pump = Pump(self, parameter_server, self.num_workers)

    @checked
    def stop_async_training(self) -> dict[str, Any]:
        """Ends the workers, takes over what was learned, and returns the statistics.

        What ended training before, such as a worker that was lost too often, is raised here.
        """
        if self._pump is not None:
            pump, self._pump = self._pump, None
            self.set_policy_parameters(pump.stop().arrays)
            self.learner.learner_steps += pump.gradients
        return self.get_training_stats()

    @checked
    def get_training_stats(self) -> dict[str, Any]:
        """As of any agent; while workers are training, also what they have done so far."""
        stats = super().get_training_stats()
        return stats if self._pump is None else {**stats, **self._pump.stats()}


class MultiAgentLearner:
    """Several agents in one environment, each with its own algorithm or settings.

    learner = MultiAgentLearner({"dqn": dqn, "double": double})
    learner.train_agents(batch)                              # or {"dqn": batch, ...}
    learner.get_best_agent("reward"); learner.ensemble_predict(obs)
    """

    @checked
    def __init__(self, agents: dict[str, Any]):
        if not agents:
            raise ConfigError("there are no agents; give at least one, by name")
        self.agents = dict(agents)

    @checked
    def train_agents(self, batches: GivenBatch) -> dict[str, dict[str, Any]]:
        """Has each agent learn from its own batch by name, or all of them from the same one."""
        apart = isinstance(batches, Mapping) and set(batches) <= set(self.agents)
        own: Any = batches if apart else dict.fromkeys(self.agents, batches)
        return {name: self.agents[name].learn_from_batch(batch) for name, batch in own.items()}

    @checked
    def get_best_agent(self, metric: str = "reward") -> str:
        """Returns the name of the best: of the highest `reward`, or the lowest `loss`.

        Agents that have not been evaluated yet are, where it is the reward that counts.
        """
        if metric not in BEST:
            raise ConfigError(
                f"agents are compared by {' or '.join(BEST)}, got {metric!r}; use one of them"
            )
        scores = {name: self._score(agent, metric) for name, agent in self.agents.items()}
        known = {name: score for name, score in scores.items() if not np.isnan(score)}
        if not known:
            raise ConfigError(f"no agent has a {metric} yet; train them first")
        best: str = BEST[metric](known, key=known.__getitem__)
        return best

    def _score(self, agent: Any, metric: str) -> float:
        score = float(agent.get_training_stats()[metric])
        if metric == "reward" and np.isnan(score):
            score = float(agent.evaluate_policy().reward)
        return score

    @checked
    def ensemble_predict(self, obs: Any) -> Any:
        """Returns what most agents would do; the mean of continuous actions.

        Of a tie, the action of those that come first.
        """
        actions = [np.asarray(agent.act(obs)) for agent in self.agents.values()]
        if actions[0].dtype.kind == "f":
            return np.mean(actions, axis=0, dtype=actions[0].dtype)
        votes = Counter(action.tobytes() for action in actions)
        most = votes.most_common(1)[0][0]
        return next(action for action in actions if action.tobytes() == most)[()]


def _learner(config: Config, spec: EnvSpec) -> GradientLearner:
    torch.set_num_threads(config.learner.threads)  # small layers gain nothing from more
    algorithm = build_algorithm(config, spec)
    device = pick_device(config.learner.device, "device")
    learner = GradientLearner(algorithm, config.learner, config.env, device, seed=config.run.seed)
    algorithm.update_targets(0)
    return learner


def _usual(settings: Mapping[str, Any], batch_size: int, update_frequency: int) -> dict[str, Any]:
    """Returns the settings with those that follow from arguments, unless told otherwise."""
    capacity = settings.get("replay.capacity", 100_000)
    return {
        "replay.learning_starts": max(batch_size, min(500, capacity)),
        "replay.samples_per_insert": batch_size / update_frequency,
        **settings,
    }


def _refuse_odd(settings: Mapping[str, Any], batch: int, update: int, target: int) -> None:
    for key, argument in SETTLED.items():
        if key in settings:
            raise ConfigError(
                f"settings has {key!r}, which is the argument {argument} here; give that"
            )
    for key in ("env.normalize_obs", "env.normalize_reward"):
        if settings.get(key):
            raise ConfigError(
                f"settings has {key}, whose statistics no gradient carries to others; use a "
                "wrapper in env.wrappers, such as NormalizeObservation, or leave it out"
            )
    if min(batch, update, target) < 1:
        raise ConfigError(
            "batch_size, update_frequency and target_update_frequency are at least 1, got "
            f"{batch}, {update} and {target}; leave them out for the defaults"
        )
