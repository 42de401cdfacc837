"""Agents: an algorithm of the table, its learner, and gradients apart from steps.

Batches are dictionaries of arrays, as buffers give them, or the `Batch` of a run's own replay.
"""

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import mode
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
import torch
from beartype.vale import IsInstance
from torch import Tensor

from rookery import seeding
from rookery.actors.policy import NONE, recipe
from rookery.algorithms import build_algorithm
from rookery.api.arguments import refuse_arguments
from rookery.api.dqn_agent import LearnerAgent
from rookery.components.experience import batch_of, encoded, keys_of, rollout_batches
from rookery.components.protocols import Arrays, Evaluation, Experience, checked_methods
from rookery.config.algorithms import entry_of
from rookery.config.checks import Count
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.errors import ConfigError
from rookery.evaluation.evaluator import Evaluator
from rookery.learner.gradients import ComputedGradients, GradientLearner
from rookery.networks.device import pick_device
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.types import Array, ArrayBatch, Batch, EnvSpec

if TYPE_CHECKING:
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
CAPACITY = "replay.capacity"
BEST = {"reward": max, "loss": min}  # metric → which end of it is good


@checked_methods
class DistributedAgent(LearnerAgent):
    """Learns from batches, acts, and computes gradients for a parameter server.

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

    def __init__(
        self,
        algorithm: str = "dqn",
        lr: float = 0.001,
        batch_size: Count = 32,
        update_frequency: Count = 4,
        target_update_frequency: Count = 100,
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
        _refuse_odd(settings)
        usual = {  # what follows from arguments
            "name": "agent",
            "replay.learning_starts": max(batch_size, min(500, settings.get(CAPACITY, 500))),
            "replay.samples_per_insert": batch_size / update_frequency,
        }
        made_from = recipe(env, {**usual, **settings, **given})
        spec, codec = made_from.spaces()
        self.learner: GradientLearner
        super().__init__(made_from, spec, codec, _learner(made_from.config, spec))
        self.lr, self.batch_size, self.update_frequency = lr, batch_size, update_frequency
        self._found: ComputedGradients | None = None  # the gradients that were computed last
        self.owed = 0  # gradients since the last step or the last parameters, here and elsewhere
        self.exploring = False  # set by a loop while it collects experience
        self.metrics: dict[str, float] = {}  # of the last batch
        self._evaluation: Evaluation | None = None
        self._evaluations = 0
        self._rng = np.random.default_rng(seed)  # orders the steps of rollouts
        self.reset_training_stats()

    @property
    def epsilon(self) -> float:
        """The share of random actions: falls with learner steps, `update_frequency` steps each."""
        random = self.config.randomness
        schedule = Schedule(random.first, random.last, random.decay)
        return schedule.at(self.learner_steps * self.update_frequency / random.steps)

    @property
    def on_policy(self) -> bool:
        """Whether it learns from whole rollouts of its newest parameters only (A2C, PPO)."""
        return self.config.algo.on_policy

    # Learning.

    def learn_from_batch(self, batch: GivenBatch) -> dict[str, Any]:
        """Takes one learner step; returns metrics and `td_error` [B], {} where it was skipped."""
        facts = self.learner.learn(self._batch(batch))
        self._stale = True
        return self._noted(facts.td_error, facts.metrics)

    def compute_gradients(self, batch: GivenBatch) -> Arrays:
        """Returns the batch's gradients by name, clipped; {} where they are not finite.

        Nothing is stepped. `update_policy()` steps by them here; after a step by a server, give
        its parameters to `set_policy_parameters`.
        """
        self._found = self.learner.gradients(self._batch(batch))
        if self._found is None:
            return {}
        self.owed += 1
        self._noted(self._found.td_error, self._found.metrics)
        return self._found.arrays

    @property
    def td_error(self) -> Array | None:
        """[B], of the batch that gradients were computed of last: what rows are ranked by."""
        return None if self._found is None else self._found.td_error

    def apply_gradients(self, gradients: Mapping[str, Any]) -> None:
        """Takes a learner step by these gradients, with the agent's own optimizer."""
        self.learner.take(gradients)
        self.owed, self._stale = 0, True

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

    def rollout_batches(self, steps: Sequence[Experience]) -> Iterator[ArrayBatch]:
        """Yields the batches of an on-policy agent for steps that it has just played, in order.

        They have advantages (GAE) and the log-probabilities of the actions under its parameters.
        """
        columns = {key: np.stack([step[key] for step in steps]) for key in keys_of(self.spec)}
        batch = encoded(columns, self.config, self.spec, self.codec)
        ended = columns["terminated"] | columns["truncated"]
        yield from rollout_batches(self.learner, self.config, batch, ended, self._rng)

    def _batch(self, batch: GivenBatch) -> ArrayBatch:
        return batch_of(batch, self.config, self.spec, self.codec)

    def _noted(self, td_error: Array | Tensor | None, metrics: Mapping[str, Any]) -> dict[str, Any]:
        self.metrics = {name: float(value) for name, value in metrics.items()}  # waits for it
        if not metrics:
            return {}
        self._losses.append(self.metrics["loss"])
        if td_error is not None:
            self._errors.append(float(np.abs(td_error).mean()))
        self._batches += 1
        return {**self.metrics, "td_error": td_error}

    # Parameters.

    def get_policy_parameters(self) -> Arrays:
        """Returns copies of everything that is trained, by name: where a server begins."""
        return self.learner.parameters()

    def set_policy_parameters(
        self, parameters: Mapping[str, Any], learner_steps: int | None = None
    ) -> None:
        """Takes parameters over that are so many learner steps newer; target networks follow.

        None counts the gradients that were computed here since the last parameters. After 0 steps
        learning begins with these parameters.
        """
        self.learner.load(parameters, self.owed if learner_steps is None else learner_steps)
        self.owed, self._stale = 0, True

    def act(self, obs: Any, epsilon: float | None = None) -> Any:
        """Returns the action for one observation; random with probability `epsilon`.

        Without one it is greedy, except while a loop collects experience: then it explores, by
        the agent's `epsilon` or by the algorithm's own noise.
        """
        if epsilon is None:
            epsilon = self.epsilon if self.exploring else 0.0
        return self._action(obs, epsilon, noise=self.exploring)

    def evaluate_policy(self, num_episodes: Count = 10) -> Evaluation:
        """Plays so many episodes without exploring."""
        config, factory = self.recipe
        evaluator = Evaluator(
            lambda num: make(config.env, num, factory=factory),
            self.policy().algorithm,
            episodes=num_episodes,
        )
        seed = seeding.integer(config.run.seed, Role.EVALUATOR, index=self._evaluations)
        self._evaluations += 1
        with contextlib.closing(evaluator):
            found = evaluator.run(seed=seed, timeout_s=config.eval.timeout_s)
        mean, deviation = float(np.mean(found.returns)), float(np.std(found.returns))
        self._evaluation = Evaluation(mean, deviation, found.returns, found.lengths)
        return self._evaluation

    # Files and numbers.

    save_checkpoint, load_checkpoint = LearnerAgent.save, LearnerAgent.load

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Returns JSON-ready numbers and arrays, for a loop's checkpoint."""
        return self.learner.state()

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Continues from what `state` returned."""
        super().restore(numbers, arrays)
        self.owed = 0

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

    def reset_training_stats(self) -> None:
        """Forgets means and counts; learner steps go on."""
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._errors: deque[float] = deque(maxlen=WINDOW)
        self._batches = 0
        self._evaluation = None


@checked_methods
class MultiAgentLearner:
    """Several agents in one environment, each with its own algorithm or settings.

    learner = MultiAgentLearner({"dqn": dqn, "double": double})
    learner.train_agents(batch)                              # or {"dqn": batch, ...}
    learner.get_best_agent("reward"); learner.ensemble_predict(obs)
    """

    def __init__(self, agents: dict[str, Any]):
        if not agents:
            raise ConfigError("there are no agents; give at least one, by name")
        self.agents = dict(agents)

    def train_agents(self, batches: GivenBatch) -> dict[str, dict[str, Any]]:
        """Has each agent learn from its own batch by name, or all of them from the same one."""
        apart = isinstance(batches, Mapping) and set(batches) <= set(self.agents)
        own: Any = batches if apart else dict.fromkeys(self.agents, batches)
        return {name: self.agents[name].learn_from_batch(batch) for name, batch in own.items()}

    def get_best_agent(self, metric: str = "reward") -> str:
        """Returns the name of the best: of the highest `reward`, or the lowest `loss`.

        Agents that have not been evaluated yet are, where it is the reward that counts.
        """
        if metric not in BEST:
            raise ConfigError(
                f"agents are compared by {' or '.join(BEST)}, got {metric!r}; use one of them"
            )
        known: dict[str, float] = {}
        for name, agent in self.agents.items():
            score = agent.get_training_stats()[metric]
            if metric == "reward" and np.isnan(score):
                score = agent.evaluate_policy().reward
            if not np.isnan(score):
                known[name] = float(score)
        if not known:
            raise ConfigError(f"no agent has a {metric} yet; train them first")
        best: str = BEST[metric](known, key=known.__getitem__)
        return best

    def ensemble_predict(self, obs: Any) -> Any:
        """Returns what most agents would do; the mean of continuous actions.

        Of a tie, the action of those that come first.
        """
        actions = [np.asarray(agent.act(obs)) for agent in self.agents.values()]
        if actions[0].dtype.kind == "f":
            return np.mean(actions, axis=0, dtype=actions[0].dtype)
        most = mode(action.tobytes() for action in actions)
        return next(action for action in actions if action.tobytes() == most)[()]


def _learner(config: Config, spec: EnvSpec) -> GradientLearner:
    torch.set_num_threads(config.learner.threads)  # small layers gain nothing from more
    algorithm = build_algorithm(config, spec)
    device = pick_device(config.learner.device, "device")
    learner = GradientLearner(algorithm, config.learner, config.env, device, seed=config.run.seed)
    algorithm.update_targets(0)
    return learner


def _refuse_odd(settings: Mapping[str, Any]) -> None:
    refuse_arguments(settings, SETTLED)
    for key in ("env.normalize_obs", "env.normalize_reward"):
        if settings.get(key):
            raise ConfigError(
                f"settings has {key}, whose statistics no gradient carries to others; use a "
                "wrapper in env.wrappers, such as NormalizeObservation, or leave it out"
            )
