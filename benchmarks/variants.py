"""Benchmarks that flags make: several numbers of actors, several engines."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.bench import Bench, Better, Contender, Ratio
from benchmarks.table import BENCHES, loops

EFFICIENCY = 0.85  # of N actors, versus N times one
KEPT = 0.85  # of the env steps/s of the first engine, by another one
FIRST_STEP_S = 10.0  # to the first learner step, on any engine
CHUNKS = (256, 1024)  # env steps that an actor plays for each request of the learner


def collecting(counts: Sequence[int]) -> Bench:
    """Returns runs with these numbers of actors, versus the first number and versus `raw`.

    `raw` is what the machine itself allows: as many processes that share nothing. All of them
    have one trial in every round.
    """
    pairs = [_run_and_raw(count, counts[0]) for count in counts]
    ratios = {f"{run.name} / {raw.name}": Ratio(run.name, raw.name) for run, raw in pairs} | {
        f"{run.name}, efficiency": Ratio(run.name, run.baseline, count / counts[0])
        for (run, _), count in zip(pairs, counts, strict=True)
        if run.name != run.baseline
    }
    return Bench(
        about="CartPole, 64 environments and a network 2x64 for each actor, rows in replay; "
        "raw: as many processes that share nothing",
        unit="env steps/s",
        contenders=tuple(contender for pair in pairs for contender in pair),
        ratios=ratios,
    )


def asynchronous(counts: Sequence[int]) -> Bench:
    """Returns the benchmark `async` with the first of these numbers of actors."""
    return replace(BENCHES["async"], contenders=loops(counts[0]))


# benchmark → how it looks with --actors
WITH_ACTORS: dict[str, Callable[[Sequence[int]], Bench]] = {
    "collect": collecting,
    "async": asynchronous,
}


def engines(names: Sequence[str]) -> Bench:
    """Returns what engines cost: env steps in small and large chunks, and the first step."""
    return Bench(
        about="CartPole, async with 2 actors, 64 environments each: rows in replay, in chunks of "
        "256 and 1024 env steps; and from the command to the first learner step",
        unit="256, 1024: env steps/s; first: s",
        contenders=(
            *(_chunks(chunk, name, names[0]) for chunk in CHUNKS for name in names),
            *(_first_step(name) for name in names),
        ),
    )


def _run_and_raw(count: int, first: int) -> tuple[Contender, Contender]:
    """Returns a run with so many actors, and as many processes that share nothing."""
    run = Contender(
        name=_actors(count),
        command=("collect/rookery_crew.py", "--actors", str(count)),
        baseline=_actors(first),
        bar=EFFICIENCY * count / first if count != first else None,
    )
    raw = Contender(
        name=f"raw x{count}",
        command=("collect/rookery_apart.py", "--processes", str(count)),
        baseline=f"raw x{first}",
    )
    return run, raw


def _actors(count: int) -> str:
    return f"{count} actors" if count > 1 else "1 actor"


def _chunks(chunk: int, engine: str, first: str) -> Contender:
    """Returns a run on this engine that collects in such chunks."""
    run = ("collect/rookery_crew.py", "--actors", "2", "--engine", engine, "--chunk", str(chunk))
    bar = KEPT if engine != first else None
    return Contender(name=f"{chunk}:{engine}", command=run, baseline=f"{chunk}:{first}", bar=bar)


def _first_step(engine: str) -> Contender:
    """Returns how long it takes on this engine until the learner has done its first step."""
    name = f"first:{engine}"
    return Contender(
        name=name,
        command=("train/rookery_first.py", "--engine", engine),
        baseline=name,
        bar=FIRST_STEP_S,
        better=Better.LOWER,
    )
