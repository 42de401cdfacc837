"""Settings of the path-finding algorithm `team`: DQN, communication, imitation, curriculum."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rookery.config.algorithms import SEQUENCES, AlgoConfig, Taken
from rookery.config.checks import at_least_0, positive, within
from rookery.config.schema import Config, Mode
from rookery.errors import ConfigError

AGENTS = "each agent has its own rewards, which the rules of the world set: leave it out"


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
    n_step: int = 3  # env steps summed before bootstrapping
    length: int = 16  # steps of a sequence that are learned from
    burn_in: int = 8  # steps before the learned ones, which only warm up the recurrent state
    double: bool = True  # van Hasselt et al. 2016
    target_period: int = 500  # learner steps between copies into the target network
    target_tau: float | None = 0.005  # Polyak factor at every learner step, instead of a period
    eta: float = 0.5  # priority of a sequence: eta * largest TD error + (1 - eta) * mean TD error
    talk: Talk = Talk.NEAR
    neighbours: int = 4  # maximum number of agents that an agent receives messages from
    rounds: int = 2  # message passing rounds in a step
    heads: int = 4  # attention heads over received messages
    width: int = 32  # units of each attention head
    explorers: int = 4  # one agent in this many explores, the others act greedily
    care: float = 0.0  # weight of communication neighbours' negative rewards in an agent's reward
    teacher: Teacher = Teacher.NONE  # planner: imitate its actions, with the Q values as logits
    temperature: float = (
        0.0  # of softmax(values / temperature) for actions, except in mode device; 0: greedy
    )
    teams: int = (
        3  # in mode device: team sizes trained at once, the largest unlocked by the curriculum
    )
    curriculum: dict[str, Any] = field(default_factory=dict)  # agents, sizes, threshold, history, …
    guided_steps: int = 32  # maximum steps of the phase in which some worlds follow the planner
    policy_steps: int = 16  # steps of the following phase, in which all worlds follow the policy
    student_share: float = 0.5  # share of the worlds that follow the planner in the first phase

    takes = Taken(
        SEQUENCES
        | {
            "env.frame_stack": ((1,), "agents have a recurrent memory: leave it out"),
            "env.reward_scale": ((1.0,), AGENTS),
            "env.reward_clip": ((None,), AGENTS),
            "env.normalize_obs": ((False,), "views are bits: leave it out"),
            "env.normalize_reward": ((False,), AGENTS),
        }
    )
    remembers = True

    @property
    def network_settings(self) -> tuple[str, ...]:
        return ("talk", "rounds", "heads", "width")

    @property
    def taught(self) -> bool:
        """Whether the team learns by imitating the planner, instead of from rewards."""
        return self.teacher is not Teacher.NONE

    @property
    def sequence(self) -> int:
        return self.burn_in + self.length

    @property
    def stride(self) -> int:
        return self.length

    @property
    def learned(self) -> int:
        return self.length

    def check_run(self, config: Config) -> None:
        if self.taught and config.run.mode is not Mode.DEVICE:
            raise ConfigError(
                f"algo.teacher works in run.mode device only, got {config.run.mode}; use --mode "
                "device, or leave the teacher out"
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        positives = ("length", "target_period", "neighbours", "rounds", "heads", "width")
        on_device = ("teams", "guided_steps", "policy_steps", "student_share")
        for name in (*positives, "explorers", *on_device):
            positive(f"algo.{name}", getattr(self, name))
        for name in ("burn_in", "care", "temperature"):
            at_least_0(f"algo.{name}", getattr(self, name))
        within("algo.eta", self.eta, 0.0, 1.0)
        within("algo.student_share", self.student_share, 0.0, 1.0)
        if self.target_tau is not None:
            within("algo.target_tau", self.target_tau, 0.0, 1.0)
