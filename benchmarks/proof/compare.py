"""Runs every case on both trees and says where they agree.

A case is run once on each tree. Equal weights settle it; otherwise both trees run it again, and a
case whose two runs on one tree differ is compared by its counts. `--twice` runs all cases twice.
"""

import argparse
import platform
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from benchmarks.proof import play, trees
from benchmarks.proof.cases import CASES, Case
from benchmarks.proof.play import Outcome
from benchmarks.proof.renames import BASE
from benchmarks.proof.trees import CommandError, Commands, Tree

DIGITS = 12  # of a SHA-256 that are shown
HEAD = ("case", "engine", "old", "new", "equal", "remark")
VERSIONED = ("torch", "numpy", "numba", "gymnasium")


class Row(NamedTuple):
    """What one case came to."""

    case: str
    engine: str
    old: str
    new: str
    equal: bool
    remark: str = ""


class Pair(NamedTuple):
    """The two trees, and how often each runs a case at least."""

    old: Tree
    new: Tree
    twice: bool


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    began = time.monotonic()
    chosen = [case for case in CASES if not args.cases or case.name in args.cases]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    commands = Commands()
    with tempfile.TemporaryDirectory(prefix="rookery-proof-") as name:
        folder = Path(name)
        with trees.older(args.against, folder, commands, keep=args.keep) as old:
            pair = Pair(old, trees.newer(folder, commands), args.twice)
            rows = compare(chosen, pair, folder, args.jobs)
            page = markdown(rows, old.commit, pair.new.commit)
    print(page)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(page)
    unequal = [row for row in rows if not row.equal]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(rows) - len(unequal)} of {len(rows)} equal; {time.monotonic() - began:.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} s of CPU"
    )
    return 1 if unequal else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proof",
        description="Compares what this tree computes with what another commit computes.",
    )
    parser.add_argument("--against", default=BASE, metavar="COMMIT", help=f"default {BASE}")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="checkout of COMMIT that stays for the next time"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the table as Markdown")
    parser.add_argument("--cases", type=_names, default=[], metavar="A,B", help="default: all")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time; 1")
    parser.add_argument("--twice", action="store_true", help="two runs of each case on each tree")
    return parser.parse_args(argv)


def _names(text: str) -> list[str]:
    names, known = text.split(","), [case.name for case in CASES]
    if wrong := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"knows {', '.join(known)}; got {', '.join(wrong)}")
    return names


def compare(cases: Sequence[Case], pair: Pair, folder: Path, jobs: int) -> list[Row]:
    """Returns the rows of all cases in their order."""
    work = [(case, engine) for case in cases for engine in case.engines]
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            found = [pool.submit(_rows, case, engine, pair, folder) for case, engine in work]
            return [row for rows in found for row in rows.result()]
        except BaseException:  # an interrupt: whatever runs must not outlive us; it is raised again
            pair.new.commands.close()
            pool.shutdown(cancel_futures=True)
            raise


def _rows(case: Case, engine: str, pair: Pair, folder: Path) -> list[Row]:
    """Runs a case, and where it says so resumes it as well; prints what they came to."""
    own = Path(tempfile.mkdtemp(prefix=f"{case.name}-{engine}-", dir=folder))
    played = _judged(
        case.name,
        engine,
        lambda: play.play(case, engine, pair.old, _empty(own)),
        lambda: play.play(case, engine, pair.new, _empty(own)),
        twice=pair.twice,
    )
    rows = [played]
    if case.resumed and engine == case.engines[0]:
        rows.append(_resumed(case, engine, pair, own, whole=played.old))
    for row in rows:
        print(_line(row), flush=True)
    return rows


def _resumed(case: Case, engine: str, pair: Pair, own: Path, *, whole: str) -> Row:
    """Lets both trees finish what the older one has half done."""
    name = f"{case.name}, resumed"
    try:
        half = play.halve(case, engine, pair.old, _empty(own))
    except CommandError as error:
        return Row(name, engine, "", "", False, str(error))
    row = _judged(
        name,
        engine,
        lambda: play.resume(pair.old, half, _empty(own), renamed=False),
        lambda: play.resume(pair.new, half, _empty(own), renamed=True),
        twice=pair.twice,
    )
    if row.equal and row.old == whole:
        return row._replace(remark=f"{row.remark} as without interruption".strip())
    return row


def _judged(
    name: str,
    engine: str,
    old: Callable[[], Outcome],
    new: Callable[[], Outcome],
    *,
    twice: bool,
) -> Row:
    try:
        olds, news = [old()], [new()]
        if twice or olds != news:
            olds, news = [*olds, old()], [*news, new()]
    except CommandError as error:
        return Row(name, engine, "", "", False, str(error).replace("\n", " "))
    return verdict(name, engine, olds, news)


def verdict(name: str, engine: str, olds: Sequence[Outcome], news: Sequence[Outcome]) -> Row:
    """Says whether two trees agree, each of which has run a case once or twice."""
    row = Row(name, engine, _short(olds[0].sha), _short(news[0].sha), False)
    every = [*olds, *news]
    if len(set(every)) == 1:
        return row._replace(equal=True)
    if len(set(olds)) == len(set(news)) == 1:
        return row._replace(remark=_difference(olds[0], news[0]))
    equal = bool(every[0].counts) and len({outcome.counts for outcome in every}) == 1
    said = "compared by counts" if equal else "and the counts differ too"
    return row._replace(equal=equal, remark=f"two runs on one tree differ: {said}")


def _difference(old: Outcome, new: Outcome) -> str:
    what = [
        f"{name} {before} → {after}"
        for name, before, after in zip(play.COUNTS, old.counts, new.counts, strict=False)
        if before != after
    ]
    if old.score != new.score:
        what.append(f"score {old.score} → {new.score}")
    return ", ".join(what) or "the counts are equal"


def markdown(rows: Sequence[Row], old: str, new: str) -> str:
    """Returns the page that is written."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in VERSIONED)
    lines = [
        "# The same computation on two commits",
        "",
        f"Old: {old}. New: {new}. Python {platform.python_version()}, {versions}; one thread.",
        "Each row has the first digits of the SHA-256 of the weights after a short seeded run; for",
        "the packaged policy, of its measures. Resumed: both commits finish a run of which the old",
        "one has done the first half.",
        "",
        _cells(HEAD),
        _cells(["---"] * len(HEAD)),
        *(_cells([*row[:4], "yes" if row.equal else "**no**", row.remark]) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _cells(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', '/') for word in words)} |"


def _line(row: Row) -> str:
    equal = "equal" if row.equal else "NOT EQUAL"
    return f"{row.case} ({row.engine}): {row.old} {row.new} {equal} {row.remark}".rstrip()


def _short(sha: str) -> str:
    return sha[:DIGITS]


def _empty(parent: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=parent))


if __name__ == "__main__":
    sys.exit(main())
