"""The answer of a benchmark: medians, spreads and ratios of its trials, and which bars hold."""

import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.bench import Answer, Bench, Better, Contender, Runs

HOLDS: dict[Better, Callable[[float, float], bool]] = {
    Better.HIGHER: operator.ge,
    Better.LOWER: operator.le,
}


def summary(title: str, bench: Bench, runs: Runs, *, absent: Sequence[Contender]) -> Answer:
    """Returns the answer, ready for JSON.

    `bars` says which hold, `runs` has every trial, `absent` the peers that are not installed, and
    `censored` the seeds that were not solved: their time is a lower bound.
    """
    values = {name: [float(trial["value"]) for trial in trials] for name, trials in runs.items()}
    medians = {name: statistics.median(numbers) for name, numbers in values.items()}
    present = [contender for contender in bench.contenders if contender.name in medians]
    ratios = dict(_ratios(present, medians)) | dict(_more_ratios(bench, medians))
    censored = {name: seeds for name in runs if (seeds := unsolved(runs[name]))}
    return {
        "bench": title,
        "unit": bench.unit,
        "better": str(bench.better),
        "results": [
            {"name": name, "value": medians[name], "spread": spread(values[name])}
            for name in values
        ],
        "ratios": ratios,
        "bars": dict(_bars(present, bench.better, medians | ratios, censored)),
        "absent": {peer.name: f"pip install 'rookery[peers]' ({peer.package})" for peer in absent},
        "censored": censored,
        "runs": runs,
    }


def spread(values: Sequence[float]) -> float:
    """Returns (largest - smallest) / median."""
    return (max(values) - min(values)) / statistics.median(values)


def unsolved(answers: Sequence[Answer]) -> list[int]:
    """Returns the seeds of the trainings that ended without reaching their target."""
    return [answer["seed"] for answer in answers if not answer.get("solved", True)]


def _ratios(
    contenders: Sequence[Contender], medians: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    """Yields Rookery / contender, or contender / its baseline."""
    for contender in contenders:
        name, reference = contender.name, contender.reference
        if name != reference:
            above, below = (name, reference) if contender.baseline else (reference, name)
            yield name, medians[above] / medians[below]


def _more_ratios(bench: Bench, medians: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, ratio in bench.ratios.items():
        if ratio.above in medians and ratio.below in medians:
            yield name, medians[ratio.above] / (medians[ratio.below] * ratio.times)


def _bars(
    contenders: Sequence[Contender],
    better: Better,
    found: Mapping[str, float],
    censored: Mapping[str, list[int]],
) -> Iterator[tuple[str, Answer]]:
    """Yields whether each bar holds. Trainings that solved nothing hold none, however short."""
    for contender in contenders:
        if contender.bar is not None:
            reached = HOLDS[contender.better or better](found[contender.name], contender.bar)
            held = reached and contender.reference not in censored
            yield (
                contender.name,
                {"bar": contender.bar, "found": found[contender.name], "held": held},
            )
