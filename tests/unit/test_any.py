"""mypy forbids `Any` in the core packages; the places that are excepted are few."""

import re
from pathlib import Path

import rookery

CORE = ("training", "actors", "learner", "replay", "cluster", "engines")
MOST = 40  # places in all of them
EXCEPTED = re.compile(r"# type: ignore\[[^\]]*explicit-any[^\]]*\](?P<reason>.*)")


def _exceptions() -> list[tuple[str, str]]:
    """Returns file and reason of every line in the core packages that may contain `Any`."""
    root = Path(rookery.__file__).parent
    return [
        (f"{path.relative_to(root)}:{number}", found["reason"])
        for package in CORE
        for path in sorted((root / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := EXCEPTED.search(line)) is not None
    ]


def test_few_places_of_the_core_packages_may_say_any() -> None:
    places = _exceptions()

    assert len(places) <= MOST, [place for place, _ in places]


def test_each_of_these_places_gives_its_reason() -> None:
    assert [place for place, reason in _exceptions() if not re.match(r"  # \S", reason)] == []


def test_mypy_forbids_any_in_every_module_of_the_core_packages() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    table = next(part for part in text.split("[[") if "disallow_any_explicit = true" in part)

    assert all(f'"rookery.{package}.*"' in table for package in CORE)
