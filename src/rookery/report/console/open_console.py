"""Where a run is watched: a live panel on a terminal, plain lines elsewhere."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rookery.config import Config
from rookery.report.console.plain_lines import Plain
from rookery.report.console.run_view import View

if TYPE_CHECKING:
    from rookery.report.console.live_panel import Live

SHOW_CURSOR = "\x1b[?25h"


def is_terminal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Says whether a panel can be drawn: somebody looks, and the signs it is made of exist."""
    capable = environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return stream.isatty() and capable and utf8 and not environ.get("CI")


def open_console(
    config: Config,
    stream: TextIO,
    *,
    terminal: bool,
    scores: Sequence[float] = (),
    now: Callable[[], float] = time.monotonic,
) -> "Live | Plain":
    """Opens the console; `scores` are those of evaluations before this session."""
    view = View(config, now, scores)
    if not terminal:
        return Plain(view, stream, now)
    from rookery.report.console.live_panel import open_live

    return open_live(view, stream)


def restore_cursor(stream: TextIO) -> None:
    """Shows the cursor again, after the process that hid it was killed."""
    stream.write(SHOW_CURSOR)
    stream.flush()
