"""The cases of `make misuse`: commands that must be refused, and runs that must not end well.

A case is a command line, what happens to it on its way, and what must come of it: the exit code,
and a pattern that the output has to contain. Cases are grown from tables, so that one more verb,
flag, setting or environment is one more line.
"""

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Argv = Sequence[str]

# {run}: a finished run of the corridor; {cut}: one that Ctrl+C has ended; {new}: a folder that is
# not there; {empty}: an empty folder; {file}: a text file. Each case gets its own copy.
RUN, CUT, NEW, EMPTY, FILE = "{run}", "{cut}", "{new}", "{empty}", "{file}"


@dataclass(frozen=True)
class Case:
    """A command, what is done to it, and what must come of it."""

    group: str
    argv: Argv
    code: tuple[int, ...]
    says: str = r"rookery: error: \S"  # a pattern of the output
    damage: tuple[str, str] | None = None  # (what, file below the run folder) before it starts
    send: tuple[signal.Signals, float] | None = None  # signal, seconds after the start
    within_s: float = 60.0
    env: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        done = f" [{' '.join(self.damage)}]" if self.damage else ""
        sent = f" [{self.send[0].name} after {self.send[1]:g} s]" if self.send else ""
        return f"rookery {' '.join(self.argv)}{done}{sent}"


SMALL = {
    "run.env_steps": 1_500,
    "eval.target": "null",
    "eval.period": 500,
    "eval.episodes": 2,
    "checkpoint.period": 500,
    "replay.capacity": 2_000,
    "replay.learning_starts": 100,
    "replay.batch_size": 16,
    "report.tensorboard": "false",
}


def words(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


# Wrong commands.

WORDS: list[tuple[Argv, str]] = [
    (["fly"], "fly"),
    (["trian", "cartpole"], "train"),
    (["train"], "--env"),
    (["train", "cartpoel"], "cartpole"),
    (["train", "cartpole", "extra"], "extra"),
    (["train", "cartpole", "--sed", "3"], "--se"),
    (["train", "no/such/file.yaml"], "no/such/file"),
    (["train", FILE], "."),
    (["train", EMPTY], "."),
    (["train", ""], "."),
    (["train", "cartpole", "--mode", "parallel"], "single"),
    (["train", "cartpole", "--engine", "mpi"], "processes"),
    (["train", "cartpole", "--device", "tpu"], "tpu"),
    (["train", "cartpole", "--device", "cuda:7"], "cuda"),
    (["train", "cartpole", "--env", "CartPole-v99"], "CartPole"),
    (["train", "cartpole", "--env", "NoSuchEnv-v0"], "NoSuchEnv"),
    (["train", "cartpole", "--env", "no_module:Env"], "no_module"),
    (["train", "cartpole", "--env", "odd_envs:Missing"], "Missing"),
    (["train", "cartpole", "--env", "odd_envs:NUMBER"], "NUMBER"),
    (["train", "cartpole", "--env", ""], "."),
    (["train", "cartpole", "--set", "replay.batchsize=3"], "batch_size"),
    (["train", "cartpole", "--set", "learner.learning_rate=3"], "learner.lr"),
    (["train", "cartpole", "--set", "replay.batch_size"], "="),
    (["train", "cartpole", "--set", "=3"], "."),
    (["train", "cartpole", "--set", "replay=3"], "replay"),
    (["train", "cartpole", "--set", "algo.name=dnq"], "dqn"),
    (["train", "cartpole", "--set", "algo.name=no.module:Algo"], "no.module"),
    (["train", "cartpole", "--set", "net.custom=no.module:Net"], "no.module"),
    (["train", "cartpole", "--set", "run.callbacks=[no.module:f]"], "no.module"),
    (["train", "cartpole", "--set", "env.wrappers=[no.module:W]"], "no.module"),
    (["train", "cartpole", "--set", "env.kwargs={gravity: 3}"], "gravity"),
    (["train", "cartpole", "--set", "env.kwargs=[1"], "env.kwargs"),
    (["train", "cartpole", "--set", "replay.capacity=10"], "capacity"),
    (["train", "cartpole", "--set", "replay.capacity=100000000000000"], "."),
    (["train", "cartpole", "--set", "net.hidden=[1000000,1000000]"], "."),
    (["train", "cartpole", "--set", "net.hidden=[0]"], "net.hidden"),
    (["train", "cartpole", "--set", "algo.gamma=1.5"], "gamma"),
    (["train", "cartpole", "--set", "actor.epsilon=2"], "epsilon"),
    (["train", "cartpole", "--set", "learner.optimizer=Adamm"], "Adam"),
    (["train", "cartpole", "--tag", "../../etc"], "tag"),
    (["train", "cartpole", "--tag", "a/b"], "tag"),
    (["train", "cartpole", "--run-dir", ""], "."),
    (["train", "cartpole", "--run-dir", FILE], "."),
    (["train", "cartpole", "--run-dir", "/proc/rookery"], "."),
    (["train", "cartpole", "--run-dir", RUN], "."),
    (["train", "cartpole", "--seed", "1", "--seeds", "2-3"], "--seed"),
    (["train", "cartpole", "--seeds", "5-2"], "."),
    (["train", "cartpole", "--seeds", "a-b"], "."),
    (["train", "cartpole", "--init-from", NEW], "."),
    (["train", "cartpole", "--init-from", EMPTY], "."),
    (["train", "sac-pendulum", "--init-from", RUN], "."),
    (["train", "cartpole", "--learners", "99"], "."),
    (["train", "cartpole", "--mode", "single", "--actors", "4"], "."),
    (["train", "cartpole", "--mode", "device"], "device"),
    (["train", "cartpole", "--engine", "ray", "--address", "127.0.0.1:1"], "."),
    (["train", "cartpole", "--address", "127.0.0.1:1"], "."),
    (["train", "cartpole", "--actor-devices", "cuda:9"], "."),
    (["train", "ppo-cartpole", "--set", "algo.clip=0.1"], "clip_range"),
    (["train", "ppo-cartpole", "--set", "replay.sampling=prioritized"], "."),
    (["train", "cartpole", "--env", "Pendulum-v1"], "."),
    (["train", "sac-pendulum", "--env", "ALE/Pong-v5"], "."),
    (["train", "--resume", NEW], "."),
    (["train", "--resume", EMPTY], "."),
    (["train", "--resume", FILE], "."),
    (["train", "--resume"], "."),
    (["train", "--resume", "cartpole"], "."),
    (["train", "cartpole", "--exact"], "--exact"),
    (["share"], "scenario"),
    (["share", "--scenario", "nothing"], "nothing"),
    (["share", "--scenario", "cartpole", "--strategy", "greedy"], "self_heavy"),
    (["share", "--scenario", "cartpole", "--strategy", "adaptive"], "self_heavy"),
    (["share", "--scenario", "cartpole", "--cross-sample-ratio", "2"], "ratio"),
    (["share", "--scenario", "cartpole", "--cross-sample-ratio", "-0.1"], "ratio"),
    (["share", "--scenario", "cartpole", "--gpus", "9"], "."),
    (["serve"], "--scenario"),
    (["serve", "--scenario", "nothing"], "nothing"),
    (["serve", "--scenario", "cartpole", "--bind", "nowhere"], "."),
    (["serve", "--scenario", "cartpole", "--bind", "127.0.0.1:99999"], "."),
    (["serve", "--scenario", "cartpole", "--bind", "0.0.0.0:8899"], "tls"),
    (["serve", "--scenario", "cartpole", "--aggregation", "mean"], "average"),
    (["serve", "--scenario", "cartpole", "--tls-cert", NEW, "--tls-key", NEW], "."),
    (["join"], "."),
    (["join", "http://127.0.0.1:1"], "."),
    (["join", "ftp://127.0.0.1:1"], "."),
    (["join", "http://example.invalid:1"], "."),
    (["list", "extra"], "extra"),
    (["clean", "--runs", FILE], "."),
    (["compare"], "RUN"),
    (["compare", RUN, "--baseline", "none"], "none"),
    (["compare", RUN, "--tag", "none"], "none"),
    (["compare", RUN, "--metric", "score"], "."),
    (["compare", RUN, "--threshold", "high"], "."),
    (["evaluate", RUN, "--checkpoint", "newest"], "best"),
    (["evaluate", RUN, "--checkpoint", "123456789"], "."),
    (["evaluate", RUN, "--checkpoint", ""], "."),
    (["record", RUN, "--out", "/proc/film.gif"], "."),
    (["record", RUN, "--out", "film.avi"], "."),
    (["record", RUN, "--format", "avi"], "gif"),
    (["export", RUN, "--out", "/proc/policy.safetensors"], "."),
    (["export", RUN, "--out", "policy.pickle"], "."),
    (["export", RUN, "--format", "pickle"], "onnx"),
    (["timeline", RUN, "--from", "5", "--to", "2"], "."),
    (["timeline", RUN, "--out", "/proc/t.html"], "."),
    (["ladder", RUN], "."),
    (["play", RUN], "."),
    (["pathfinding"], "."),
    (["pathfinding", "evaluate", NEW], "."),
    (["pathfinding", "evaluate", "demo", "--agents", "0"], "."),
    (["pathfinding", "evaluate", "demo", "--density", "2"], "."),
    (["pathfinding", "show", NEW], "."),
]

# Verbs with a run folder, each with folders that are none.
OF_RUNS = ("evaluate", "record", "export", "timeline", "ladder", "play", "compare")
NO_RUNS = (NEW, EMPTY, FILE, "", "/dev/null")

# Flags that take a number, and words that are none, or none that is allowed.
COUNTS: list[tuple[Argv, str]] = [
    (["train", "cartpole"], "--actors"),
    (["train", "cartpole"], "--envs-per-actor"),
    (["train", "cartpole"], "--env-steps"),
    (["train", "cartpole"], "--episodes"),
    (["train", "cartpole"], "--minutes"),
    (["train", "cartpole"], "--shards"),
    (["train", "cartpole"], "--learners"),
    (["evaluate", RUN], "--episodes"),
    (["record", RUN], "--episodes"),
    (["record", RUN], "--fps"),
    (["record", RUN], "--max-steps"),
    (["compare", RUN], "--reps"),
    (["share", "--scenario", "cartpole"], "--n-parallel"),
    (["share", "--scenario", "cartpole"], "--buffer-size"),
    (["serve", "--scenario", "cartpole"], "--quorum"),
    (["serve", "--scenario", "cartpole"], "--deadline"),
    (["serve", "--scenario", "cartpole", "--mode", "federated"], "--rounds"),
]
NO_COUNTS = ("-1", "0", "x", "", "nan", "inf")

# Settings, each with a value of another type.
NOT_A = {"int": "soon", "float": "high", "bool": "perhaps", "str|none": "[1, 2]"}


def wrong_commands(settings: Sequence[dict[str, str]]) -> Iterator[Case]:
    """Yields commands that are refused with exit code 2 before anything starts.

    `settings` are those of `rookery list --settings --json`.
    """
    for argv, says in WORDS:
        yield Case("commands", argv, (2, 3), says)
    for verb in OF_RUNS:
        for folder in NO_RUNS:
            yield Case("commands", [verb, folder], (2,))
    for argv, flag in COUNTS:
        for word in NO_COUNTS:
            yield Case("commands", [*argv, flag, word], (2,), flag.lstrip("-").split("-")[0])
    for setting in settings:
        key, wrong = setting["key"], NOT_A.get(setting["type"])
        if wrong is not None and "." in key:
            yield Case("settings", ["train", "cartpole", "--set", f"{key}={wrong}"], (2,), key)


# Odd environments: what must come of a run of each in single mode, and in async mode.

ENVS: dict[str, tuple[int, int, str]] = {
    "NanObs": (3, 3, "NanObs.*step"),
    "InfObs": (3, 3, "InfObs.*step"),
    "NanReward": (3, 3, "NanReward.*step"),
    "InfReward": (3, 3, "InfReward.*step"),
    "NoReward": (3, 3, "NoReward.*step"),
    "ListReward": (3, 3, "ListReward.*step"),
    "TextReward": (3, 3, "TextReward.*step"),
    "FourValues": (3, 3, "FourValues.*step"),
    "NothingReturned": (3, 3, "NothingReturned.*step"),
    "IntegerFlags": (3, 3, "IntegerFlags.*step"),
    "NoInfo": (3, 3, "NoInfo.*step"),
    "WrongShape": (3, 3, "WrongShape.*step"),
    "WrongType": (3, 3, "WrongType.*step"),
    "Raises": (3, 3, "Raises.*step.*KeyError"),
    "RaisesInReset": (3, 3, "RaisesInReset.*OSError"),
    "RaisesInConstructor": (2, 2, "no heater is connected"),
    "RaisesInClose": (3, 3, "cannot be switched off"),
    "Exits": (3, 3, "Exits.*step"),
    "ExitsInReset": (3, 3, "ExitsInReset"),
    "ExitsInConstructor": (3, 3, "ExitsInConstructor"),
    "Interrupts": (130, 3, "KeyboardInterrupt|interrupted"),
    "Hangs": (3, 3, "Hangs|actor 0"),
    "HangsInReset": (3, 3, "HangsInReset"),
    "HangsInConstructor": (3, 3, "HangsInConstructor"),
    "Kills": (-9, 3, "."),
    "Crashes": (-6, 3, "."),
    "NoSpaces": (2, 2, "NoSpaces"),
    "TextSpace": (2, 2, "observations may be"),
    "GraphActions": (2, 2, "actions may be"),
    "OldReset": (3, 3, "OldReset"),
    "NotAnEnvironment": (2, 2, "NotAnEnvironment"),
    "not_a_class": (2, 2, "not_a_class"),
}
SLOW = ("Hangs", "HangsInReset", "HangsInConstructor")  # in async until 20 losses in an hour


def odd_environments() -> Iterator[Case]:
    """Yields runs in environments that break their API, in single, sync and async mode."""
    for name, (single, replaced, says) in ENVS.items():
        # each actor has one environment, so that its third error comes within the run
        settings = SMALL | {"run.env_steps": 3_000, "actor.envs": 1, "actor.env_step_timeout_s": 2}
        for mode in ("single", "sync", "async"):
            code = replaced if mode == "async" else single
            argv = ["train", "--env", f"odd_envs:{name}", "--mode", mode, *words(settings)]
            if mode != "single":
                argv += ["--actors", "1", "--engine", "processes"]
                code = replaced
            within_s = 400.0 if name in SLOW else 60.0
            argv += ["--quiet", "--json"]
            yield Case("environments", argv, (code,), f"(?s){says}", within_s=within_s)


# Signals, at many moments.

# before 0.05 s the interpreter itself is starting, and no code of ours can answer
MOMENTS_S = (0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
LONG = words(SMALL | {"run.env_steps": 10_000_000, "eval.period": 100_000})
SIGNALLED: tuple[Argv, ...] = (
    ["train", "corridor", *LONG],
    ["train", "corridor", "--mode", "async", "--actors", "2", *LONG],
    ["share", "--scenario", "corridor", "--n-parallel", "2", *LONG],
)


def signals() -> Iterator[Case]:
    """Yields runs that get a signal while they start and while they train."""
    for argv in SIGNALLED:
        for number, code in CODES.items():
            for moment_s in MOMENTS_S:
                yield Case("signals", argv, (code,), "", send=(number, moment_s), within_s=30.0)


# Damaged run folders.

DAMAGES = ("missing", "empty", "half", "flipped", "garbage", "folder")
READERS: tuple[Argv, ...] = (
    ["train", "--resume", CUT, "--env-steps", "2500"],
    ["evaluate", CUT, "--episodes", "2"],
    ["compare", CUT],
)


def damaged_folders(files: Sequence[Path]) -> Iterator[Case]:
    """Yields commands on a run folder in which one file was damaged.

    `files` are paths below the run folder. A damaged file may be one that the command does not
    need: then it succeeds.
    """
    for path in files:
        for damage in DAMAGES:
            for argv in READERS:
                yield Case("folders", argv, (0, 2, 3), "", damage=(damage, str(path)))
