"""The answer of a benchmark as a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.bench import Answer
from rookery.terminal import output


def report(answer: Answer) -> list[str]:
    """Returns the table, and below it what else there is to know."""
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


def figure(value: float) -> str:
    """Returns a value with four digits, or without decimals from 1,000 on."""
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _cells(result: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    name = result["name"]
    yield name
    yield figure(result["value"])
    yield f"{result['spread']:.0%}"
    yield f"{answer['ratios'][name]:.3g}" if name in answer["ratios"] else ""
    bar = answer["bars"].get(name)
    yield f"{bar['bar']:.3g} {'held' if bar['held'] else 'missed'}" if bar else ""
