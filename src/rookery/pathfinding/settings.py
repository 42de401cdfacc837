"""Settings of the path-finding algorithm `team`: DQN, communication, imitation, curriculum."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rookery.config.algorithms import SEQUENCES, AlgoConfig
from rookery.config.checks import Count, CountOr0, Fraction, PositiveFraction, PositiveOr0
from rookery.config.refusals import Takes

TAUGHT: Takes = {"run.mode": (("device",), "algo.teacher works there alone: use --mode device")}
AGENTS = "each agent has its own rewards, which the rules of the world set: leave it out"
TAKES: Takes = {
    **SEQUENCES,
    "env.frame_stack": ((1,), "agents have a recurrent memory: leave it out"),
    "env.reward_scale": ((1.0,), AGENTS),
    "env.reward_clip": ((None,), AGENTS),
    "env.normalize_obs": ((False,), "views are bits: leave it out"),
    "env.normalize_reward": ((False,), AGENTS),
}


class Talk(StrEnum):
    """Communication graph: which agents receive each other's messages."""

    NEAR = "near"  # each agent receives messages from the nearest agents in its view
    NONE = "none"  # no communication


class Teacher(StrEnum):
    """Source of the actions for imitation learning; none: reinforcement learning from rewards."""

    NONE = "none"  # no imitation: the team learns from rewards
    PLANNER = "planner"  # a planner that knows the whole map plans from states the policy reaches


@dataclass(frozen=True, kw_only=True)
class TeamConfig(AlgoConfig):
    """Settings of `team`: recurrent DQN for communicating agents (DHC and DCC, Ma et al. 2021)."""

    name: str = "team"
    n_step: Count = 3  # env steps summed before bootstrapping
    length: Count = 16  # steps of a sequence that are learned from
    burn_in: CountOr0 = 8  # steps before the learned ones, which only warm up the recurrent state
    double: bool = True  # double Q-learning (van Hasselt et al. 2016)
    target_period: Count = 500  # learner steps between copies into the target network
    target_tau: Fraction | None = 0.005  # Polyak factor at every learner step, instead of a period
    eta: Fraction = 0.5  # priority of a sequence: eta * largest TD error + (1 - eta) * mean
    talk: Talk = Talk.NEAR  # communication graph: agents that receive each other's messages
    neighbours: Count = 4  # maximum number of agents that an agent receives messages from
    rounds: Count = 2  # message passing rounds in a step
    heads: Count = 4  # attention heads over received messages
    width: Count = 32  # units of each attention head
    explorers: Count = 4  # one agent in this many explores, the others act greedily
    care: PositiveOr0 = 0.0  # weight of neighbours' negative rewards in an agent's reward
    teacher: Teacher = Teacher.NONE  # source of actions to imitate, with the Q values as logits
    temperature: PositiveOr0 = 0.0  # of sampled actions, except in mode device; 0: greedy
    teams: Count = 3  # team sizes trained at once in mode device, the largest by the curriculum
    curriculum: dict[str, Any] = field(default_factory=dict)  # stages: agents, sizes, threshold, …
    guided_steps: Count = 32  # maximum steps of the phase in which some worlds follow the planner
    policy_steps: Count = 16  # steps of the following phase, in which all worlds follow the policy
    student_share: PositiveFraction = 0.5  # share of worlds that follow the planner first

    remembers = True
    network_settings = ("talk", "rounds", "heads", "width")

    @property
    def takes(self) -> Takes:
        return {**TAKES, **TAUGHT} if self.taught else TAKES

    @property
    def taught(self) -> bool:
        """Whether the team learns by imitating the planner, instead of from rewards."""
        return self.teacher is not Teacher.NONE
