"""Runs Rookery beside its peers and its floors, in one go on this machine.

A bench has contenders, each a script of the `benchmarks` folder that does the
same work and prints {"value": ...}. Every trial is a process of its own with one thread. Trials
are interleaved (round 1: everybody once; round 2: everybody once; ...), so that a machine that
slows down slows all of them. A value is the median over the rounds, its spread
(largest - smallest) / median, and a ratio Rookery's median / the contender's median, or what its
name says.
"""

import argparse
import importlib.util
import json
import operator
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from rookery.cli import arguments, output
from rookery.errors import ConfigError, LostError, StalledError

Answer: TypeAlias = dict[str, Any]  # what a script printed; "value" is always in it
Runs: TypeAlias = dict[str, list[Answer]]  # contender → its answers, in the order of the rounds

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
EXAMPLES = """\
examples:
  rookery bench replay --peers
  rookery bench train --peers --seeds 0-4 --json
  rookery bench train --engines processes,ray
"""
EFFICIENCY = 0.85  # of N actors, beside N times one
KEPT = 0.85  # of an engine's collection, by another one
FIRST_STEP_S = 10.0  # to the first learner step, on any engine
CHUNKS = (256, 1024)  # env steps of an actor between two looks at the learner
EXTRAS = {"stable_baselines3": "sb3", "uvicorn": "server"}  # what a bench needs → its extra
HERO = "rookery"  # the contender that all others of its group are compared with


class Better(StrEnum):
    """Which values win."""

    HIGHER = "higher"
    LOWER = "lower"


HOLDS: dict[Better, Callable[[float, float], bool]] = {
    Better.HIGHER: operator.ge,
    Better.LOWER: operator.le,
}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Somebody who does the work of a bench."""

    name: str  # "who", or "what:who" where a bench compares more than one thing
    command: tuple[str, ...]  # script in the benchmarks folder, and its arguments
    package: str = ""  # a peer's package; peers take part only when asked to
    bar: float | None = None  # for Rookery's ratio to this one; for Rookery itself its value
    rival: str = ""  # the contender this one is compared with, where it is not Rookery
    better: "Better | None" = None  # where it is not as in the rest of its bench

    @property
    def hero(self) -> str:
        """The name of the contender that this one is compared with."""
        if self.rival:
            return self.rival
        what, colon, _ = self.name.rpartition(":")
        return what + colon + HERO


class Share(NamedTuple):
    """A ratio of two medians beside those that contenders have: above / (below * times)."""

    above: str  # contender
    below: str
    times: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One comparison."""

    about: str
    unit: str
    better: Better = Better.HIGHER
    contenders: tuple[Contender, ...]
    shares: Mapping[str, Share] = field(default_factory=dict)
    rounds: int = 3
    deadline_s: float = 180.0  # for one trial
    needs: str = ""  # a package without which there is nothing to compare


def _rate(name: str, work: str, **more: Any) -> Contender:
    """Returns a contender timed by `trial.py`; `work` is file:function."""
    return Contender(name=name, command=("trial.py", work), **more)


_DOUBLE = ("floor.py", "--net", "256,256", "--batch", "64", "--double")
_FULL = (*_DOUBLE, "--dueling", "--weights", "--clip")

_MODES = "learn/rookery_modes.py"


def _modes(actors: int) -> tuple[Contender, ...]:
    """Returns a learner beside so many actors, and what it is compared with."""
    return (
        Contender(name="rookery", command=(_MODES, "async", "--actors", str(actors))),
        Contender(name="single", command=(_MODES, "single"), bar=1.0),
        Contender(name="alone", command=(_MODES, "alone")),
    )


def _crowd(counts: Sequence[int]) -> Bench:
    """Returns crews of several sizes beside the first one, and beside the machine's own ceiling.

    That is as many processes that share nothing. Both sizes take turns in every round.
    """
    pairs = [_pair(count, counts[0]) for count in counts]
    shares = {
        f"{crew.name} / {apart.name}": Share(crew.name, apart.name) for crew, apart in pairs
    } | {
        f"{crew.name}, efficiency": Share(crew.name, crew.rival, count / counts[0])
        for (crew, _), count in zip(pairs, counts, strict=True)
        if crew.name != crew.rival
    }
    return Bench(
        about="CartPole, 64 environments and a network 2x64 for each actor, rows in replay; "
        "raw: as many processes that share nothing",
        unit="env steps/s",
        contenders=tuple(who for pair in pairs for who in pair),
        shares=shares,
    )


def _pair(count: int, first: int) -> tuple[Contender, Contender]:
    """Returns so many actors with a learner, and as many alone."""
    crew = Contender(
        name=_crew(count),
        command=("collect/rookery_crew.py", "--actors", str(count)),
        rival=_crew(first),
        bar=EFFICIENCY * count / first if count != first else None,
    )
    apart = Contender(
        name=f"raw x{count}",
        command=("collect/rookery_apart.py", "--processes", str(count)),
        rival=f"raw x{first}",
    )
    return crew, apart


def _crew(count: int) -> str:
    return f"{count} actors" if count > 1 else "1 actor"


def _engines(engines: Sequence[str]) -> Bench:
    """Returns what engines cost: collection in small and large chunks, and the first step."""
    return Bench(
        about="CartPole, async with 2 actors, 64 environments each: rows in replay, in chunks of "
        "256 and 1024 env steps; and from the command to the first learner step",
        unit="256, 1024: env steps/s; first: s",
        contenders=(
            *(_collecting(chunk, name, engines[0]) for chunk in CHUNKS for name in engines),
            *(_first(name) for name in engines),
        ),
    )


def _collecting(chunk: int, engine: str, first: str) -> Contender:
    crew = ("collect/rookery_crew.py", "--actors", "2", "--engine", engine, "--chunk", str(chunk))
    rival = f"{chunk}:{first}"
    bar = KEPT if engine != first else None
    return Contender(name=f"{chunk}:{engine}", command=crew, rival=rival, bar=bar)


def _first(engine: str) -> Contender:
    name = f"first:{engine}"
    command = ("train/rookery_first.py", "--engine", engine)
    return Contender(name=name, command=command, rival=name, bar=FIRST_STEP_S, better=Better.LOWER)


# --actors: how a bench looks with these numbers of actors
CROWDS: dict[str, Callable[[Sequence[int]], Bench]] = {
    "collect": _crowd,
    "async": lambda counts: replace(BENCHES["async"], contenders=_modes(counts[0])),
}

_COST = "share/rookery_cost.py"
_GAMES = ("selfplay/rookery_games.py",)
_SERVICE = ("server/rookery_service.py",)

BENCHES: dict[str, Bench] = {
    "replay": Bench(
        about="prioritised draws of 256 rows with weights and reranking; appends of 100 rows",
        unit="draw: batches/s, append: rows/s",
        contenders=(
            _rate("draw:rookery", "replay/rookery_pool.py:draw"),
            _rate("draw:cpprb", "replay/cpprb_buffer.py:draw", package="cpprb", bar=3.5),
            _rate("draw:tianshou", "replay/tianshou_buffer.py:draw", package="tianshou", bar=2.4),
            _rate("append:rookery", "replay/rookery_pool.py:append"),
            _rate(
                "append:sb3", "replay/sb3_buffer.py:append", package="stable_baselines3", bar=1.0
            ),
            _rate("append:cpprb", "replay/cpprb_buffer.py:append", package="cpprb"),
        ),
    ),
    "collect": Bench(
        about="CartPole, 64 environments, network 2x64, rows written; raw is env.step alone",
        unit="env steps/s",
        contenders=(
            _rate("rookery", "collect/rookery_actor.py:collect"),
            _rate("raw", "collect/raw_env.py:step", bar=0.25),
        ),
    ),
    "learn": Bench(
        about="learner steps 2x256, batch 64 (SAC 256), drawn from replay; the floor has ready "
        "tensors",
        unit="learner steps/s",
        contenders=(
            _rate("double:rookery", "learn/rookery_learner.py:double"),
            _rate("double:sb3", "learn/sb3_dqn.py:learn", package="stable_baselines3"),
            Contender(name="double:floor", command=_DOUBLE, bar=0.85),
            _rate("full:rookery", "learn/rookery_learner.py:full"),
            Contender(name="full:floor", command=_FULL, bar=0.85),
            _rate("sac:rookery", "learn/rookery_learner.py:sac"),
            _rate("sac:floor", "learn/floor_sac.py:learn", bar=0.95),
        ),
    ),
    "async": Bench(
        about="learner steps in whole runs, 2x256, batch 64: two actors in other processes, "
        "the single loop, and a learner that nobody plays beside",
        unit="learner steps/s",
        contenders=_modes(2),
    ),
    "weights": Bench(
        about="publish of 1 MB to a verified copy in a polling process on this host",
        unit="ms",
        better=Better.LOWER,
        contenders=(Contender(name="rookery", command=("weights/rookery_board.py",), bar=2.0),),
    ),
    "train": Bench(
        about="CartPole-v1 to a 20-episode greedy mean of 475; one round for each seed",
        unit="s",
        better=Better.LOWER,
        contenders=(
            Contender(name="rookery", command=("train/rookery_train.py",)),
            Contender(
                name="sb3", command=("train/sb3_dqn.py",), package="stable_baselines3", bar=1 / 3
            ),
        ),
        rounds=5,
        deadline_s=900.0,
    ),
    "checkpoint": Bench(
        about="training waits for a checkpoint, 1 M rows of 8 floats; Ctrl+C with 4 GB of replay",
        unit="stall: ms, interrupt: s",
        better=Better.LOWER,
        contenders=(
            Contender(name="stall:rookery", command=("checkpoint/rookery_stall.py",), bar=250.0),
            Contender(
                name="interrupt:rookery", command=("checkpoint/rookery_interrupt.py",), bar=10.0
            ),
        ),
        deadline_s=300.0,
    ),
    "start": Bench(
        about="`rookery train cartpole` to its first env steps; cold compiles everything anew",
        unit="s",
        better=Better.LOWER,
        contenders=(
            Contender(name="warm:rookery", command=("start/rookery_start.py", "warm"), bar=4.0),
            Contender(name="cold:rookery", command=("start/rookery_start.py", "cold")),
        ),
    ),
    "share": Bench(
        about="SB3 in a pool of four: what a batch of 256 with r = 0.2 takes longer than one with "
        "local_only, rings of 1 M and of 10,000 rows; SAC updates as a share of those with "
        "local_only; batches and steps beside lists in a manager process, 4 x 2,500 rows",
        unit="longer: us, train: share, draw: batches/s, append: steps/s",
        contenders=(
            Contender(
                name="longer:rookery", command=(_COST, "draw"), bar=20.0, better=Better.LOWER
            ),
            Contender(
                name="longer, 10k rows:rookery",
                command=(_COST, "draw", "--rows", "10000"),
                better=Better.LOWER,
            ),
            Contender(name="train:rookery", command=(_COST, "train"), bar=0.98),
            _rate("draw:rookery", "share/rookery_pool.py:draw"),
            _rate("draw:manager", "share/manager_lists.py:draw", bar=10_000.0),
            _rate("append:rookery", "share/rookery_pool.py:append"),
            _rate("append:manager", "share/manager_lists.py:append", bar=100.0),
        ),
        needs="stable_baselines3",
    ),
    "pathfinding": Bench(
        about="32 agents on 40 x 40 cells; env: compiled worlds, views as planes [6, 9, 9], a new "
        "case for each every 256 steps; device: in torch, on a GPU where there is one",
        unit="agent-steps/s",
        contenders=(
            _rate(
                "env_cpu_1core",
                "pathfinding/rookery_env.py:step",
                rival="env_cpu_1core",
                bar=1_000_000.0,
            ),
            *(
                _rate(
                    f"{part}_device", f"pathfinding/rookery_device.py:{part}", rival="env_cpu_1core"
                )
                for part in ("env", "act", "learn")
            ),
        ),
    ),
    "selfplay": Bench(
        about="Ludo for two; ludo: random choices, compiled, one core; actors: async against "
        "random, scripted and past, network 2x256; training: the same with a learner step of 64 "
        "rows for each game",
        unit="games/min",
        contenders=(
            _rate(
                "ludo_games_per_minute",
                "selfplay/rookery_ludo.py:play",
                rival="ludo_games_per_minute",
                bar=1_600_000.0,
            ),
            Contender(name="1 actor", command=(*_GAMES, "--actors", "1"), rival="1 actor"),
            Contender(
                name="2 actors", command=(*_GAMES, "--actors", "2"), rival="1 actor", bar=1.7
            ),
            Contender(
                name="training_games_per_minute",
                command=(*_GAMES, "--learn"),
                rival="training_games_per_minute",
                bar=20_000.0,
            ),
        ),
    ),
    "server": Bench(
        about="parameter service on loopback: 4 client processes push and pull 10 MB in turns, "
        "signed, hashed and applied; socket: the same bytes over bare sockets; tls: with TLS too",
        unit="MB/s",
        contenders=(
            Contender(name="rookery", command=_SERVICE, bar=300.0),
            Contender(name="socket", command=("server/socket_copy.py",)),
            Contender(name="tls", command=(*_SERVICE, "--tls"), rival="socket"),
        ),
        needs="uvicorn",
    ),
}


class Trial(NamedTuple):
    """What one round asks of a contender."""

    seed: int
    seconds: float
    deadline_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("bench", choices=list(BENCHES), help="what to compare")
    parser.add_argument(
        "--actors",
        type=arguments.counts,
        metavar="1,2",
        help="collect: crews of these sizes; async: actors beside the learner",
    )
    parser.add_argument(
        "--engines",
        type=arguments.words,
        metavar="processes,ray",
        help="train: what these cost, beside the first of them",
    )
    parser.add_argument("--peers", action="store_true", help="run the peers too (rookery[peers])")
    rounds = parser.add_mutually_exclusive_group()
    rounds.add_argument("--rounds", type=arguments.count, metavar="N", help="trials of each")
    rounds.add_argument(
        "--seeds", type=arguments.seeds, metavar="0-4", help="one round for each seed"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="of a timed trial, default 2"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    """Runs a bench and prints what came out."""
    bench = _bench(args)
    if bench.needs and not _installed(bench.needs):
        raise ConfigError(
            f"bench {args.bench} measures {bench.needs}, which is not installed; "
            f"pip install 'rookery[{EXTRAS[bench.needs]}]'"
        )
    seeds = args.seeds or range(args.rounds or bench.rounds)
    invited = [who for who in bench.contenders if args.peers or not who.package]
    present = [who for who in invited if not who.package or _installed(who.package)]
    trials = [Trial(seed, args.seconds, bench.deadline_s) for seed in seeds]
    runs = compete(present, trials, _attempt)
    answer = summary(args.bench, bench, runs, absent=[w for w in invited if w not in present])
    if args.json:
        output.say_json(answer)
    else:
        output.say(*report(answer))
    return 0


def _bench(args: argparse.Namespace) -> Bench:
    if args.engines and args.bench != "train":
        raise ConfigError(f"bench {args.bench} has one engine, got --engines; it goes with train")
    if args.engines:
        return _engines(_known(args.engines))
    if not args.actors:
        return BENCHES[args.bench]
    if args.bench not in CROWDS:
        raise ConfigError(
            f"bench {args.bench} has no actors, got --actors; it goes with {' and '.join(CROWDS)}"
        )
    return CROWDS[args.bench](args.actors)


def _known(engines: Sequence[str]) -> Sequence[str]:
    from rookery.config.schema import Engine

    allowed = [str(engine) for engine in (Engine.PROCESSES, Engine.RAY)]
    if wrong := [engine for engine in engines if engine not in allowed]:
        raise ConfigError(
            f"--engines are of {', '.join(allowed)}, got {', '.join(wrong)}; "
            "write rookery bench train --engines processes,ray"
        )
    return engines


def compete(
    contenders: Sequence[Contender],
    trials: Sequence[Trial],
    attempt: Callable[[Contender, Trial], Answer],
) -> Runs:
    """Returns every contender's answers; all have their turn before anybody has a second one."""
    runs: Runs = {who.name: [] for who in contenders}
    for trial in trials:
        for who in contenders:
            runs[who.name].append(attempt(who, trial))
    return runs


def summary(name: str, bench: Bench, runs: Runs, *, absent: Sequence[Contender]) -> Answer:
    """Returns the answer, ready for JSON.

    `bars` says which hold, `runs` has every trial, `absent` the peers that are not installed, and
    `censored` the seeds that were not solved: their time is a lower bound.
    """
    values = {who: [float(answer["value"]) for answer in answers] for who, answers in runs.items()}
    medians = {who: statistics.median(numbers) for who, numbers in values.items()}
    took_part = [who for who in bench.contenders if who.name in medians]
    ratios = {who.name: _ratio(who, medians) for who in took_part if who.name != who.hero}
    ratios |= dict(_shares(bench, medians))
    censored = {who: seeds for who in runs if (seeds := unsolved(runs[who]))}
    return {
        "bench": name,
        "unit": bench.unit,
        "better": str(bench.better),
        "results": [
            {"name": who, "value": medians[who], "spread": spread(values[who])} for who in values
        ],
        "ratios": ratios,
        "bars": dict(_bars(took_part, bench.better, medians | ratios, censored)),
        "absent": {who.name: f"pip install 'rookery[peers]' ({who.package})" for who in absent},
        "censored": censored,
        "runs": runs,
    }


def _ratio(who: Contender, medians: Mapping[str, float]) -> float:
    """Returns Rookery / this one, or this one / its rival."""
    above, below = (who.name, who.rival) if who.rival else (who.hero, who.name)
    return medians[above] / medians[below]


def _shares(bench: Bench, medians: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, share in bench.shares.items():
        if share.above in medians and share.below in medians:
            yield name, medians[share.above] / (medians[share.below] * share.times)


def spread(values: Sequence[float]) -> float:
    """Returns (largest - smallest) / median."""
    return (max(values) - min(values)) / statistics.median(values)


def unsolved(answers: Sequence[Answer]) -> list[int]:
    """Returns the seeds of the trainings that ended without reaching their target."""
    return [answer["seed"] for answer in answers if not answer.get("solved", True)]


def _bars(
    contenders: Sequence[Contender],
    better: Better,
    found: Mapping[str, float],
    censored: Mapping[str, list[int]],
) -> Iterator[tuple[str, Answer]]:
    """Yields what became of each bar. Trainings that solved nothing hold none, however short."""
    for who in contenders:
        if who.bar is not None:
            held = (
                HOLDS[who.better or better](found[who.name], who.bar) and who.hero not in censored
            )
            yield who.name, {"bar": who.bar, "found": found[who.name], "held": held}


def _attempt(who: Contender, trial: Trial) -> Answer:
    """Runs one trial in a process of its own and returns what it printed last."""
    script, *arguments = who.command
    command = [sys.executable, str(folder() / script), *arguments]
    command += ["--seed", str(trial.seed), "--seconds", str(trial.seconds)]
    # gone with the trial, even with one that had to be killed: checkpoints are large
    with tempfile.TemporaryDirectory(prefix="rookery-bench-", ignore_cleanup_errors=True) as temp:
        code, out, err = _process(command, trial.deadline_s, temp)
    if code != 0:
        raise LostError(
            f"the contender {who.name} ended with exit code {code} where 0 is expected; try it "
            f"alone: {' '.join(command)}\n{err[-2000:]}"
        )
    answer: Answer = {"seed": trial.seed, **json.loads(out.strip().rpartition("\n")[2])}
    _narrate(who.name, answer)
    return answer


def _process(command: Sequence[str], deadline_s: float, temp: str) -> tuple[int, str, str]:
    """Returns exit code, stdout and stderr. Nothing of the child outlives this call."""
    environ = os.environ | dict.fromkeys(ONE_THREAD, "1") | {"TMPDIR": temp}
    # a session of its own: what the child has spawned ends with it
    child = subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired as late:
        raise StalledError(
            f"{' '.join(command)} took more than the {deadline_s:.0f} s allowed; is the machine "
            "busy with something else?"
        ) from late
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return child.returncode, out, err


def folder() -> Path:
    """Returns where the contenders' scripts are: in the wheel, or in the source tree."""
    package = Path(__file__).parents[1]
    places = (package / "_benchmarks", package.parents[1] / "benchmarks")
    for place in places:
        if (place / "trial.py").exists():
            return place
    raise ConfigError(
        f"the benchmark scripts are neither in {places[0]} nor in {places[1]}; "
        "install Rookery from its wheel or its source tree"
    )


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _narrate(name: str, answer: Answer) -> None:
    """Says on stderr what a trial found; stdout belongs to the answer."""
    facts = "  ".join(f"{key} {value}" for key, value in answer.items() if key != "value")
    print(f"{name:<16} {_figure(answer['value']):>12}  {facts}", file=sys.stderr, flush=True)


def report(answer: Answer) -> list[str]:
    """Says the answer as a table, with what is missing below."""
    heading = ("contender", "median", "spread", "ratio", "bar")
    cells = [tuple(_cells(result, answer)) for result in answer["results"]]
    return [
        f"{answer['bench']}, {answer['unit']}, {answer['better']} is better",
        *output.table([heading, *cells]),
        *(
            f"{name}: {ratio:.3g}"
            for name, ratio in answer["ratios"].items()
            if name not in answer["runs"]
        ),
        *(f"{name} is absent: {cure}" for name, cure in answer["absent"].items()),
        *(
            f"{name} did not solve seeds {seeds}: their time is a lower bound"
            for name, seeds in answer["censored"].items()
        ),
    ]


def _cells(result: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    name = result["name"]
    yield name
    yield _figure(result["value"])
    yield f"{result['spread']:.0%}"
    yield f"{answer['ratios'][name]:.3g}" if name in answer["ratios"] else ""
    bar = answer["bars"].get(name)
    yield f"{bar['bar']:.3g} {'held' if bar['held'] else 'missed'}" if bar else ""


def _figure(value: float) -> str:
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
