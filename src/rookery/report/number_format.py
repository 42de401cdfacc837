"""Formats numbers and texts for reading."""

from collections.abc import Callable, Sequence
from typing import TypeVar

BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "-"
LONGEST = 2_000  # characters of one text
T = TypeVar("T")


def short(x: float) -> str:
    """Formats a number with about three digits: 640, 3.1k, 12k, 1.4M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= 0.9995 * size:
            return f"{x / size:.1f}{unit}" if abs(x) < 9.95 * size else f"{x / size:.0f}{unit}"
    return f"{x:.1f}" if abs(x) < 9.95 else f"{x:.0f}"


def count(n: int) -> str:
    """Formats a whole number: 31,000 with all digits, from a million on 12.50M."""
    return f"{n:,}" if n < 1_000_000 else f"{n / 1e6:,.2f}M"


def counted(n: int, noun: str) -> str:
    """Formats a number of things: 1 run, 2 runs."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def score(x: float) -> str:
    """Formats a return or score: 0.94, -143.2, 12,346."""
    if abs(x) >= 10_000:
        return f"{x:,.0f}"
    return f"{x:.1f}" if abs(x) >= 9.995 else f"{x:.2f}"


def clock(seconds: float) -> str:
    """Formats a duration: 0:07, 12:40, 3:05:00, 2d 04:10."""
    minutes, s = divmod(max(0, round(seconds)), 60)
    hours, m = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{m:02}"
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def age(seconds: float) -> str:
    """Formats a duration in its largest unit: 40s, 12m, 5h, 3d."""
    for unit, size, most in (("s", 1, 100), ("m", 60, 100), ("h", 3600, 48)):
        if seconds / size < most:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def or_dash(value: T | None, show: Callable[[T], str]) -> str:
    """Formats a value, or returns a dash for None."""
    return UNKNOWN if value is None else show(value)


def printable(text: str) -> str:
    """Replaces control characters, which could steer a terminal, and cuts a text at LONGEST."""
    shown = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    return "".join(sign if sign.isprintable() else "?" for sign in shown)


def spark(values: Sequence[float], width: int) -> str:
    """Draws the newest `width` values as bars, scaled from their minimum to their maximum."""
    newest = values[max(0, len(values) - width) :]
    low, high = min(newest, default=0.0), max(newest, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in newest)
