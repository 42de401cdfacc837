"""Components that a user might write: they share nothing with the library but the methods."""

from typing import Any, NamedTuple

import numpy as np

from rookery.envs.toy.basic import Corridor


class OwnEnvironment:
    """Plays a corridor, one episode after another, in this process."""

    env_factory = Corridor

    def __init__(self, length: int = 8):
        self.env = Corridor(length)

    def generate_experiences(self, policy, num_episodes, max_steps_per_episode=1000):
        return [
            s for _ in range(num_episodes) for s in self._episode(policy, max_steps_per_episode)
        ]

    def _episode(self, policy, most):
        obs, steps, over = self.env.reset()[0], [], False
        while not over:
            action = policy.act(obs)
            after, reward, terminated, truncated, _ = self.env.step(action)
            truncated = truncated or len(steps) + 1 >= most
            steps.append(
                {
                    "obs": obs,
                    "action": action,
                    "reward": reward,
                    "next_obs": after,
                    "terminated": terminated,
                    "truncated": truncated,
                }
            )
            obs, over = after, terminated or truncated
        return steps


class OwnBuffer:
    """A list."""

    capacity = 1_000

    def __init__(self):
        self.steps: list[dict[str, Any]] = []
        self.rng = np.random.default_rng(0)

    def add_experiences(self, experiences):
        self.steps = [*self.steps, *experiences][-self.capacity :]

    def sample_batch(self, batch_size):
        chosen = [self.steps[i] for i in self.rng.integers(len(self.steps), size=batch_size)]
        return {key: np.stack([step[key] for step in chosen]) for key in chosen[0]}

    def get_total_experiences(self):
        return len(self.steps)


class OwnRanked(OwnBuffer):
    """A list in which what was most surprising comes first."""

    def __init__(self):
        super().__init__()
        self.ranks: dict[int, float] = {}

    def sample_batch(self, batch_size):
        rows = sorted(range(len(self.steps)), key=lambda row: -self.ranks.get(row, np.inf))
        chosen = [self.steps[row] for row in rows[:batch_size]]
        batch = {key: np.stack([step[key] for step in chosen]) for key in chosen[0]}
        return {**batch, "rows": np.array(rows[:batch_size])}

    def update_priorities(self, rows, priorities):
        self.ranks |= dict(zip(rows.tolist(), np.abs(priorities).tolist(), strict=True))


class OwnAgent:
    """Q-learning with a table for a network."""

    batch_size, update_frequency, lr = 16, 1, 0.05

    def __init__(self, states: int = 8, epsilon: float = 0.3):
        self.table = np.zeros((states, 2), dtype=np.float32)
        self.epsilon, self.rng = epsilon, np.random.default_rng(1)

    def act(self, obs):
        if self.rng.random() < self.epsilon:
            return int(self.rng.integers(2))
        return int(self.table[obs.argmax()].argmax())

    def compute_gradients(self, batch):
        now, after = batch["obs"].argmax(1), batch["next_obs"].argmax(1)
        action, gradient = batch["action"], np.zeros_like(self.table)
        target = batch["reward"] + 0.9 * ~batch["terminated"] * self.table[after].max(1)
        np.add.at(gradient, (now, action), self.table[now, action] - target)
        return {"table": gradient / len(now)}

    def get_policy_parameters(self):
        return {"table": self.table.copy()}

    def set_policy_parameters(self, parameters):
        self.table = np.array(parameters["table"])

    def evaluate_policy(self, num_episodes=10):
        greedy = OwnAgent(len(self.table), epsilon=0.0)
        greedy.table = self.table
        steps = OwnEnvironment(len(self.table)).generate_experiences(greedy, 1)
        return Score(sum(step["reward"] for step in steps))


class OwnFront:
    """An agent that is none of the library's classes and has one of them do the work."""

    def __init__(self, within):
        self.within, self.asked = within, 0
        self.recipe, self.learner = within.recipe, within.learner
        self.batch_size, self.update_frequency = within.batch_size, within.update_frequency

    @property
    def td_error(self):
        return self.within.td_error

    def compute_gradients(self, batch):
        self.asked += 1
        return self.within.compute_gradients(batch)

    def get_policy_parameters(self):
        return self.within.get_policy_parameters()

    def set_policy_parameters(self, parameters):
        self.within.set_policy_parameters(parameters)

    def evaluate_policy(self, num_episodes=10):
        return self.within.evaluate_policy(num_episodes)


class Score(NamedTuple):
    reward: float


class Answer(NamedTuple):
    accepted: bool
    code: str
    version: int


class Shown(NamedTuple):
    version: int
    arrays: dict[str, Any]


class OwnServer:
    """Goes straight against every gradient."""

    def __init__(self, parameters, lr: float = 1.0):
        self.arrays, self.lr, self.version = dict(parameters), lr, 0
        self.workers: list[str] = []

    def register_worker(self, worker):
        self.workers.append(worker)
        return self.version

    def get_parameters(self, newer_than=-1):
        return Shown(self.version, self.arrays) if self.version > newer_than else None

    def push_gradients(self, worker, grads, weight=1.0, *, version=None, push_id=None):
        self.arrays = {name: self.arrays[name] - self.lr * grads[name] for name in grads}
        self.version += 1
        return Answer(True, "ok", self.version)
