"""What is run on both trees: short seeded runs of every algorithm, and what else must not change.

All names are those of `renames.BASE`; `renames` translates them.
"""

from enum import StrEnum
from typing import NamedTuple

SEED = 3
STEPS = 1_400  # env steps of a run
HALF = STEPS // 2  # those of a run that is resumed later
BOTH = ("inline", "processes")
INLINE = ("inline",)

Settings = dict[str, str]


class Kind(StrEnum):
    """What is done with the command line, and what is compared."""

    TRAIN = "train"  # one run; its weights
    BORROW = "borrow"  # a run beside another that lends and does not move; the first one's weights
    EVALUATE = "evaluate"  # the packaged policy and the planner play cases; their measures


class Case(NamedTuple):
    """One computation that both trees must agree about."""

    name: str
    source: tuple[str, ...]  # what is trained: a scenario, or --env ID
    settings: Settings  # over those of SHORT
    engines: tuple[str, ...] = BOTH
    kind: Kind = Kind.TRAIN
    resumed: bool = False  # also: the newer tree resumes what the older one has half done


SHORT: Settings = {
    "net.hidden": "[32, 32]",
    "replay.capacity": "5000",
    "replay.warmup": "256",
    "replay.batch": "32",
    "replay.samples_per_insert": "8",
    "actor.envs": "4",
    "actor.chunk": "32",
    "actor.epsilon_steps": "1000",
    "actor.epsilon_end": "0.05",
    "actor.pull_period": "400",
    "actor.env_step_timeout_s": "600",  # the first run of a fresh checkout compiles
    "env.check": "false",
    "eval.period": "1000000",  # one evaluation, at the end
    "eval.episodes": "1",
    "eval.target": "null",
    "eval.timeout_s": "600",
    "checkpoint.period": str(HALF),
    "report.tensorboard": "false",
    "report.timeline": "false",
    "net.activation": "relu",
    "learner.lr": "0.001",
    "learner.optimizer": "adam",
    "learner.optimizer_kwargs": "{}",
    "learner.max_grad_norm": "10.0",
    "learner.publish_period": "5",
    "learner.device": "cpu",
    "learner.lr_decay": "constant",  # a schedule over the run would depend on where it is cut
}
ALONE: Settings = {"run.mode": "sync", "actor.num": "2"}

CARTPOLE = ("--env", "CartPole-v1")
PENDULUM = ("--env", "Pendulum-v1")
CORRIDOR = ("--env", "rookery.envs.toy:Corridor")
REACH = ("--env", "rookery.envs.toy:Reach")

# Worlds of two agents on 5 x 5 cells, in which the planner teaches from the first step on.
TAUGHT: Settings = {
    "run.minutes": "null",
    "env.kwargs": "{agents: 2, size: 5, density: 0.1, steps: 16, radius: 1}",
    "device.agents": "16",
    "device.rows": "64",
    "device.curriculum": "{agents: [1, 2], sizes: [5], threshold: 0.01, history: 4}",
    "algo.teacher": "planner",
    "algo.length": "8",
    "algo.burn_in": "2",
    "net.memory": "16",
    "learner.compile": "false",
    "learner.publish_period": "2",
}
TALKING: Settings = {  # agents that learn from rewards, on the CPU
    "env.kwargs": "{agents: 2, size: 5, density: 0.1, steps: 16, radius: 1}",
    "eval.kwargs": "{}",
    "algo.length": "4",
    "algo.burn_in": "2",
    "net.memory": "16",
    "replay.samples_per_insert": "2",
}
GAMES: Settings = {"selfplay.snapshot_period": "40", "actor.chunk": "64"}

CASES: tuple[Case, ...] = (
    Case("dqn", CORRIDOR, {"algo.double": "false", "algo.target_period": "20"}, resumed=True),
    Case(
        "dqn-double-dueling",
        CARTPOLE,
        {
            "algo.dueling": "true",
            "algo.n_step": "3",
            "env.wrappers": "[{rookery.envs.hold:Hold: {steps: 2}}]",
        },
    ),
    Case(
        "dqn-c51-noisy",
        CARTPOLE,
        {"algo.values": "categorical", "algo.noisy": "true", "replay.draw": "prioritized"},
    ),
    Case("dqn-quantiles", CARTPOLE, {"algo.values": "quantiles", "replay.shards": "2"}),
    Case("dqn-iqn-munchausen", CARTPOLE, {"algo.values": "implicit", "algo.munchausen": "true"}),
    Case("dqn-hindsight", ("bitflip",), {"env.kwargs": "{bits: 6}"}, INLINE),
    Case(
        "dqn-pictures",
        ("--env", "rookery.envs.toy:Pictures"),
        {"env.frame_stack": "2", "net.hidden": "[32]", "replay.samples_per_insert": "4"},
        INLINE,
    ),
    Case("r2d2", ("recall",), {"replay.warmup": "512", "replay.samples_per_insert": "4"}),
    Case("sac", PENDULUM, {"algo.name": "sac"}, resumed=True),
    Case("sac-discrete", CARTPOLE, {"algo.name": "sac"}),
    Case("tqc", PENDULUM, {"algo.name": "tqc"}),
    Case("td3", REACH, {"algo.name": "td3"}),
    Case("ddpg", REACH, {"algo.name": "ddpg"}),
    Case("ppo", CARTPOLE, {"algo.name": "ppo", "algo.epochs": "3"}, resumed=True),
    Case("a2c", PENDULUM, {"algo.name": "a2c"}),
    Case("impala", CARTPOLE, {"algo.name": "impala", "algo.length": "8"}),
    Case("team", ("pathfinding-cpu",), TALKING),
    Case("dqn-ray", CARTPOLE, {}, ("ray",)),
    Case("packaged-policy", (), {}, ("-",), Kind.EVALUATE),
    Case("taught", ("pathfinding",), TAUGHT, ("device",)),
    Case("tictactoe", ("tictactoe",), GAMES, INLINE, resumed=True),
    Case("borrower", CARTPOLE, {"sharing.cross_sample_ratio": "0.5"}, INLINE, Kind.BORROW),
)

EVALUATE = (  # a few cases of each size, some of which the packaged policy does not solve
    *("pathfinding", "evaluate", "demo", "--planner", "--json"),
    *("--device", "cpu", "--seed", str(SEED)),
    *("--agents", "8,24", "--size", "16", "--density", "0.3", "--cases", "6", "--steps", "48"),
)


def train(case: Case, engine: str, *, steps: int = STEPS, **extra: str) -> list[str]:
    """Returns the command line of a case's run, in the names of `BASE`; `extra` are flags."""
    here = {} if engine == "device" else {"run.engine": engine} | ALONE
    settings = SHORT | here | case.settings
    return [
        *("train", *case.source, "--seed", str(SEED), "--env-steps", str(steps)),
        *("--json", "--quiet"),
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
        *(word for flag, value in extra.items() for word in (f"--{flag.replace('_', '-')}", value)),
    ]
