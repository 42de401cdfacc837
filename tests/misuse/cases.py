"""The cases of `make misuse`: commands that must be refused, and runs that must not end well.

A case is a command line, what happens to it on its way, and what must come of it: the exit code,
and a pattern that the output has to contain. Cases are grown from tables, so that one more verb,
flag, setting or environment is one more line.
"""

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Argv = Sequence[str]

# {run}: a finished run of the corridor; {cut}: one that Ctrl+C has ended; {new}: a folder that is
# not there; {empty}: an empty folder; {file}: a text file; {key}: a client's key. Each case gets
# its own copy.
RUN, CUT, NEW, EMPTY, FILE, KEY = "{run}", "{cut}", "{new}", "{empty}", "{file}", "{key}"


@dataclass(frozen=True)
class Case:
    """A command, what is done to it, and what must come of it."""

    group: str
    argv: Argv
    code: int
    says: str = r"rookery: error: \S"  # a pattern of the output
    damage: tuple[str, str] | None = None  # (what, file below the run folder) before it starts
    send: tuple[signal.Signals, float] | None = None  # signal, seconds after the start
    within_s: float = 60.0
    env: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        done = f" [{' '.join(self.damage)}]" if self.damage else ""
        done = re.sub(r"\d{9,}", "N", done)  # env steps and rows, which depend on the moment
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
    (["train", FILE], "cannot be read: while parsing"),
    (["train", EMPTY], "is a folder, not a scenario"),
    (["train", ""], "name of a scenario is empty"),
    (["train", "cartpole", "--mode", "parallel"], "single"),
    (["train", "cartpole", "--engine", "mpi"], "processes"),
    (["train", "cartpole", "--device", "tpu"], "tpu"),
    (["train", "cartpole", "--device", "cuda:7"], "cuda"),
    (["train", "cartpole", "--env", "CartPole-v99"], "CartPole"),
    (["train", "cartpole", "--env", "NoSuchEnv-v0"], "NoSuchEnv"),
    (["train", "cartpole", "--env", "no_module:Env"], "no_module"),
    (["train", "cartpole", "--env", "odd_envs:Missing"], "Missing"),
    (["train", "cartpole", "--env", "odd_envs:NUMBER"], "NUMBER"),
    (["train", "cartpole", "--env", ""], "env.id is ''"),
    (["train", "cartpole", "--set", "replay.batchsize=3"], "batch_size"),
    (["train", "cartpole", "--set", "learner.learning_rate=3"], "learner.lr"),
    (["train", "cartpole", "--set", "replay.batch_size"], "="),
    (["train", "cartpole", "--set", "=3"], "unknown setting ''"),
    (["train", "cartpole", "--set", "replay=3"], "replay"),
    (["train", "cartpole", "--set", "algo.name=dnq"], "dqn"),
    (["train", "cartpole", "--set", "algo.name=no.module:Algo"], "no.module"),
    (["train", "cartpole", "--set", "net.custom=no.module:Net"], "no.module"),
    (["train", "cartpole", "--set", "run.callbacks=[no.module:f]"], "no.module"),
    (["train", "cartpole", "--set", "env.wrappers=[no.module:W]"], "no.module"),
    (["train", "cartpole", "--set", "env.kwargs={gravity: 3}"], "gravity"),
    (["train", "cartpole", "--set", "env.kwargs=[1"], "env.kwargs"),
    (["train", "cartpole", "--set", "replay.capacity=10"], "capacity"),
    (["train", "cartpole", "--set", "replay.capacity=100000000000000"], "GB of memory.*capacity"),
    (["train", "cartpole", "--set", "net.hidden=[1000000,1000000]"], "GB of memory.*net.hidden"),
    (["train", "cartpole", "--set", "net.hidden=[0]"], "net.hidden"),
    (["train", "cartpole", "--set", "algo.gamma=1.5"], "gamma"),
    (["train", "cartpole", "--set", "actor.epsilon=2"], "epsilon"),
    (["train", "cartpole", "--set", "learner.optimizer=Adamm"], "Adam"),
    (["train", "cartpole", "--tag", "../../etc"], "tag"),
    (["train", "cartpole", "--tag", "a/b"], "tag"),
    (["train", "cartpole", "--run-dir", ""], "--run-dir: needs the name"),
    (["train", "cartpole", "--run-dir", FILE], "cannot be written.*choose another"),
    (["train", "cartpole", "--run-dir", "/proc/rookery"], "cannot be written.*choose another"),
    (["train", "cartpole", "--run-dir", RUN], "already holds a run; resume it"),
    (["train", "cartpole", "--seed", "1", "--seeds", "2-3"], "--seed"),
    (["train", "cartpole", "--seeds", "5-2"], "ranges that go up"),
    (["train", "cartpole", "--seeds", "a-b"], "needs 0-4 or 0,2,5"),
    (["train", "cartpole", "--init-from", NEW], "no run folder"),
    (["train", "cartpole", "--init-from", EMPTY], "is not a run folder"),
    (["train", "cartpole", "--learners", "99"], "multiple of 99"),
    (["train", "cartpole", "--mode", "single", "--actors", "4"], "--mode sync or --mode async"),
    (["train", "cartpole", "--mode", "device"], "device"),
    (
        ["train", "cartpole", "--engine", "ray", "--address", "127.0.0.1:1"],
        "run.engine auto or inline only",
    ),
    (["train", "cartpole", "--address", "127.0.0.1:1"], "use --engine ray"),
    (["train", "cartpole", "--actor-devices", "cuda:9"], "actor.devices is 'cuda:9'"),
    (["train", "ppo-cartpole", "--set", "algo.clip=0.1"], "clip_range"),
    (["train", "ppo-cartpole", "--set", "replay.sampling=prioritized"], "uniform only"),
    (["train", "cartpole", "--env", "Pendulum-v1"], "use sac or ppo"),
    (["train", "sac-pendulum", "--env", "ALE/Pong-v5"], "not registered.*env.imports"),
    (["train", "--resume", NEW], "no run folder"),
    (["train", "--resume", EMPTY], "it has no config.yaml"),
    (["train", "--resume", FILE], "no run folder"),
    (["train", "--resume"], "--resume needs the run folder"),
    (["train", "--resume", "cartpole"], "no run folder 'cartpole'"),
    (["train", "cartpole", "--exact"], "--exact"),
    (["share"], "scenario"),
    (["share", "--scenario", "nothing"], "nothing"),
    (["share", "--scenario", "cartpole", "--strategy", "greedy"], "self_heavy"),
    (["share", "--scenario", "cartpole", "--strategy", "adaptive"], "self_heavy"),
    (["share", "--scenario", "cartpole", "--cross-sample-ratio", "2"], "ratio"),
    (["share", "--scenario", "cartpole", "--cross-sample-ratio", "-0.1"], "ratio"),
    (["share", "--scenario", "cartpole", "--gpus", "9"], "0 CUDA devices; use auto or cpu"),
    (["serve"], "no scenario was given"),
    (["serve", "--scenario", "nothing"], "nothing"),
    (["serve", "--scenario", "cartpole", "--bind", "nowhere"], "write HOST:PORT"),
    (["serve", "--scenario", "cartpole", "--bind", "127.0.0.1:99999"], "write HOST:PORT"),
    (["serve", "--scenario", "cartpole", "--bind", "0.0.0.0:8899"], "tls"),
    (["serve", "--scenario", "cartpole", "--aggregation", "mean"], "average"),
    (["serve", "--scenario", "cartpole", "--tls-cert", NEW, "--tls-key", NEW], "No such file.*PEM"),
    (["join"], "URL, --client"),
    (["join", "http://127.0.0.1:1"], "--client"),
    (["join", "http://127.0.0.1:1", "--client", "a"], "neither a key nor a certificate"),
    (["join", "ftp://127.0.0.1:1", "--client", "a", "--key-file", KEY], "https?://"),
    (["join", "http://example.invalid:1", "--client", "a", "--key-file", KEY], "use https"),
    (["join", "http://127.0.0.1:1", "--client", "a", "--key-file", FILE], "chmod 600"),
    (["list", "extra"], "extra"),
    (["clean", "--runs", FILE], "needs a folder that exists"),
    (["compare"], "RUN"),
    (["compare", RUN, "--baseline", "none"], "none"),
    (["compare", RUN, "--tag", "none"], "none"),
    (["compare", RUN, "--metric", "score"], "eval/mean_reward"),
    (["compare", RUN, "--threshold", "high"], "SCORE or ENV=SCORE"),
    (["evaluate", RUN, "--checkpoint", "newest"], "best"),
    (["evaluate", RUN, "--checkpoint", "123456789"], "has no checkpoint '123456789'; it has best"),
    (["evaluate", RUN, "--checkpoint", ""], "needs best, last or a number"),
    (["record", RUN, "--out", "/proc/film.gif"], "cannot write '/proc/film.gif'"),
    (["record", RUN, "--out", "film.avi"], r"\.gif or \.mp4"),
    (["record", RUN, "--format", "avi"], "gif"),
    (["export", RUN, "--out", "/proc/policy.safetensors"], "cannot write '/proc/policy"),
    (["export", RUN, "--out", "policy.pickle"], r"\.safetensors or \.onnx"),
    (["export", RUN, "--format", "pickle"], "onnx"),
    (["timeline", RUN, "--from", "5", "--to", "2"], "the first below the second"),
    (["timeline", RUN, "--out", "/proc/t.html"], "cannot write '/proc/t.html'"),
    (["ladder", RUN], "name a run of a game"),
    (["play", RUN], "name a run of a game"),
    (["pathfinding"], "VERB"),
    (["pathfinding", "evaluate", NEW], "no run folder"),
    (
        ["pathfinding", "evaluate", "demo", "--agents", "0"],
        "--agents: needs a whole number above 0",
    ),
    (["pathfinding", "evaluate", "demo", "--density", "2"], "share of blocked cells"),
    (["pathfinding", "show", NEW], "no run folder"),
]

# Commands that can start, and then lack what they need: exit code 3.
LOST: list[tuple[Argv, str]] = [
    (["train", "sac-pendulum", "--init-from", RUN], "weights are of another network"),
]

# Verbs with a run folder, each with folders that are none.
OF_RUNS = ("evaluate", "record", "export", "timeline", "ladder", "play", "compare")
NO_RUNS = {
    NEW: "there is no (run )?folder '.*new'",
    EMPTY: "no config.yaml",
    FILE: "there is no (run )?folder '.*file'",
    "": "argument RUN: needs the name of a folder",
    "/dev/null": "there is no (run )?folder '/dev/null'",
}

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
    """Yields commands that are refused before anything starts, or that lack what they need.

    `settings` are those of `rookery list --settings --json`.
    """
    for argv, says in WORDS:
        yield Case("commands", argv, 2, says)
    for argv, says in LOST:
        yield Case("commands", argv, 3, says)
    for verb in OF_RUNS:
        for folder, says in NO_RUNS.items():
            yield Case("commands", [verb, folder], 2, says)
    for argv, flag in COUNTS:
        for word in NO_COUNTS:
            yield Case("commands", [*argv, flag, word], 2, flag.lstrip("-").split("-")[0])
    for setting in settings:
        key, wrong = setting["key"], NOT_A.get(setting["type"])
        if wrong is not None and "." in key:
            yield Case("settings", ["train", "cartpole", "--set", f"{key}={wrong}"], 2, key)


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
            yield Case("environments", argv, code, f"(?s){says}", within_s=within_s)


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
                yield Case("signals", argv, code, "", send=(number, moment_s), within_s=30.0)


# Damaged run folders.

DAMAGES = ("missing", "empty", "half", "flipped", "garbage", "folder")
READERS: dict[str, Argv] = {
    "resume": ["train", "--resume", CUT, "--env-steps", "2500"],
    "best": ["evaluate", CUT, "--episodes", "2"],
    "last": ["evaluate", CUT, "--episodes", "2", "--checkpoint", "last"],
    "compare": ["compare", CUT],
}
SKIPPED = r"ckpt-\d+ skipped"
# File, damage and command, as patterns, and what must come of them: the first row counts. A file
# that stands in no row is not needed by the command, which must succeed.
HARM: list[tuple[str, str, str, int, str]] = [
    (r"config\.yaml", "missing|folder", ".*", 2, r"no config\.yaml"),
    (r"config\.yaml", ".*", ".*", 2, "cannot read the settings stored in"),
    (r"best/.*", ".*", "best", 0, "best/" + SKIPPED),
    (r"checkpoints/.*/rows-.*", ".*", "last", 0, ""),  # weights alone are read
    (r"checkpoints/.*", ".*", "resume|last", 0, SKIPPED),
    (r"metrics\.jsonl|progress\.csv|timeline\.jsonl", "folder", "resume", 3, "cannot be cut back"),
    (r"metrics\.jsonl", "folder", "compare", 2, "cannot be read"),
    (r"metrics\.jsonl", "missing|empty|garbage", "compare", 2, "no eval/mean_reward yet"),
    (r"lock", "folder", "resume", 2, "cannot be written"),
]


def harmed(path: str, damage: str, reader: str) -> tuple[int, str]:
    """Returns the exit code and the message of a command on a run with a damaged file."""
    for file, how, command, code, says in HARM:
        if all(map(re.fullmatch, (file, how, command), (path, damage, reader))):
            return code, says
    return 0, ""


def damaged_folders(files: Sequence[Path]) -> Iterator[Case]:
    """Yields commands on a run folder in which one of `files`, paths below it, was damaged."""
    for path in files:
        for damage in DAMAGES:
            for reader, argv in READERS.items():
                code, says = harmed(str(path), damage, reader)
                yield Case("folders", argv, code, says, damage=(damage, str(path)))
