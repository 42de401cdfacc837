"""What people see while a run goes on."""

import io
import threading
import time

import pytest
from rich.console import Console

from eventually import eventually
from rookery.config.schema import Config, EvalConfig, ReportConfig, RunConfig
from rookery.event import Counters, Evaluated, Logged, Reason, Saved, Started, Stopped, Warned
from rookery.report.console.live_panel import Live, panel
from rookery.report.console.plain_lines import Plain, is_terminal, open_console
from rookery.report.console.run_view import View
from rookery.report.number_format import age, clock, count, score, short, spark

CONFIG = Config(
    name="cartpole",
    run=RunConfig(env_steps=50_000),
    eval=EvalConfig(target=475),
    report=ReportConfig(plain_period_s=5.0),
)
METRICS = {
    "rollout/ep_rew_mean": 143.21,
    "rollout/exploration_rate": 0.05,
    "time/fps": 3127.0,
    "time/learner_steps_per_s": 640.2,
    "replay/fill": 0.12,
    "replay/samples_per_insert": 31.94,
    "actors/policy_lag": 3.0,
    "system/cpu_percent": 183.2,
    "system/memory_mb": 812.4,
}


class Clock:
    def __init__(self):
        self.s = 0.0

    def __call__(self):
        return self.s


def logged(env_steps, wall_s=10.0, metrics=METRICS):
    return Logged(Counters(env_steps, env_steps // 2, 360), wall_s, metrics)


def evaluated(env_steps, value, best=True):
    return Evaluated(Counters(env_steps), 1, 1.0, (value,), (9,), None, best, False)


def stopped(reason=Reason.TARGET, best_score=480.0, solved=True):
    return Stopped(Counters(31_000, 15_000, 400), reason, 72.4, 70.0, best_score, solved, "ab")


def shown(view, width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, record=True)
    console.print(panel(view, width))
    return console.export_text()


def plain(events, config=CONFIG, clock=None):
    stream = io.StringIO()
    sink = open_console(config, stream, terminal=False, now=clock or Clock())
    for event in events:
        sink.write(event)
    sink.close()
    return stream.getvalue()


def test_plain_output_is_exactly_this():
    events = [
        Started("runs/a", Counters(), False, {"scenario": "cartpole", "seed": 0}),
        logged(1000, metrics={"replay/fill": 0.01}),
        evaluated(12_000, 201.0),
        evaluated(14_000, 150.0, best=False),
        Saved(Counters(14_000), "x", 0.1),
        Warned(Counters(14_000), "evaluator", "died of\nsignal 9"),
        logged(31_000),
        stopped(),
    ]

    assert plain(events).splitlines() == [
        "started  scenario cartpole  seed 0  in runs/a",
        "env_steps 1000/50000  fill 1%",
        "best score 201.0 at env_steps 12000",
        "warning (evaluator): died of signal 9",
        "env_steps 31000/50000  return 143.2  score 150.0 (best 201.0, target 475)  "
        "eps 0.05  3.1k env/s  640 learn/s  fill 12%",
        "stopped (target) after 31000 env steps, 15000 learner steps, 400 episodes in 1:12; "
        "best score 480.0; solved",
    ]


def test_plain_says_where_it_was_resumed_and_when_nothing_was_found():
    resumed = Started("runs/a", Counters(env_steps=10_000), True, {"seed": 1})

    said = plain([resumed, stopped(Reason.INTERRUPTED, None, False)])

    assert said.startswith("resumed at env_steps 10000  seed 1  in runs/a\n")
    assert said.endswith("400 episodes in 1:12\n")


def test_a_plain_line_comes_once_in_its_period():
    now, stream = Clock(), io.StringIO()
    sink = Plain(View(CONFIG, now), stream, now)

    for now.s in (0.0, 1.0, 4.9, 5.0, 5.1, 9.9, 10.0):
        sink.write(logged(int(now.s * 10)))

    steps = [line.split("/")[0] for line in stream.getvalue().splitlines()]
    assert steps == ["env_steps 0", "env_steps 50", "env_steps 100"]


def test_a_stream_that_knows_only_ascii_gets_only_ascii():
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")

    sink = open_console(CONFIG, stream, terminal=False)
    sink.write(Warned(Counters(), "env", "Über \u2192 alles"))

    assert buffer.getvalue() == b"warning (env): \\xdcber \\u2192 alles\n"  # flushed, too


class Screen(io.StringIO):
    encoding = "utf-8"

    def __init__(self, tty=True, encoding="utf-8"):
        super().__init__()
        self.tty, self.encoding = tty, encoding

    def isatty(self):
        return self.tty


@pytest.mark.parametrize(
    ("screen", "environ", "answer"),
    [
        (Screen(), {"TERM": "xterm"}, True),
        (Screen(encoding="UTF8"), {"TERM": "xterm"}, True),
        (Screen(tty=False), {"TERM": "xterm"}, False),
        (Screen(), {"TERM": "dumb"}, False),
        (Screen(), {}, False),
        (Screen(), {"TERM": "xterm", "CI": "true"}, False),
        (Screen(encoding="iso8859-1"), {"TERM": "xterm"}, False),
    ],
)
def test_a_panel_is_drawn_only_where_it_can_be_seen(screen, environ, answer):
    assert is_terminal(screen, environ) is answer


def full_view(now=None):
    view = View(CONFIG, now or Clock())
    view.observe(Started("runs/cartpole-seed0", Counters(), False, {"seed": 0, "device": "cpu"}))
    view.observe(logged(15_000, wall_s=10.0))
    view.observe(logged(30_000, wall_s=20.0))
    for value in (10.0, 90.0, 344.7):
        view.observe(evaluated(30_000, value))
    view.observe(Saved(Counters(30_000), "x", 0.0))
    view.observe(Warned(Counters(30_000), "actor", "lost"))
    return view


def test_the_panel_shows_every_figure_at_80_columns():
    assert shown(full_view(), 80).splitlines() == [
        "╭─ rookery cartpole · seed 0 · device cpu ─────────────────────────────────────╮",
        "│ ━━━━━━━━━━━━━━━╺━━━━━━━━━   60%  30,000 / 50,000 env steps  0:20  ETA ≤ 0:13 │",
        "│                                                                              │",
        "│ score 344.7   best 344.7   target 475   ▁▃█                                  │",
        "│                                                                              │",
        "│ return   143.2   env steps/s      3.1k   replay fill      12%   CPU     183% │",
        "│ epsilon  0.050   learner steps/s   640   samples/insert  31.9   memory 812MB │",
        "│ episodes   360   policy lag          3   checkpoint age    0s   faults     1 │",
        "╰──────────────────────────────────────────────────────── runs/cartpole-seed0 ─╯",
    ]


@pytest.mark.parametrize("width", [60, 78, 80, 120])
def test_nothing_is_cut_off_at_usual_widths_even_when_numbers_are_large(width):
    view = full_view()
    view.observe(
        logged(
            49_999,
            wall_s=300_000.0,
            metrics={
                **METRICS,
                "rollout/ep_rew_mean": -1234.5,
                "time/fps": 1_234_567.0,
                "time/learner_steps_per_s": 12_345.0,
                "replay/fill": 1.0,
                "system/cpu_percent": 1600.0,
                "system/memory_mb": 812_000.0,
            },
        )
    )

    text = shown(view, width)

    for value in ("-1234.5", "1.2M", "12k", "100%", "1600%", "812GB", "344.7", "0.050", "31.9"):
        assert value in text
    for name in ("learner steps/s", "samples/insert", "checkpoint age", "faults"):
        assert name in text
    assert "…" not in text
    assert {len(line) for line in text.splitlines()} == {width}


def test_a_run_that_knows_nothing_yet_has_a_panel_of_the_same_height():
    empty, full = shown(View(Config(), Clock()), 80), shown(full_view(), 80)

    assert len(empty.splitlines()) == len(full.splitlines())
    assert "ETA -:--" in empty


def test_what_does_not_fit_the_title_or_the_path_is_left_out():
    view = full_view()
    view.observe(Started("runs/" + "x" * 200, Counters(), False, {"memory": "y" * 100}))

    text = shown(view, 80)

    assert "y" not in text.splitlines()[0].replace("rookery", "")
    assert "…xxx" in text


def test_the_time_left_comes_from_the_latest_marks_and_runs_down():
    now = Clock()
    view = full_view(now)
    before = view.eta_s

    now.s += 3.0

    assert before == pytest.approx(20_000 / 1500)
    assert view.eta_s == pytest.approx(before - 3.0)
    assert view.wall_s == 23.0
    assert view.checkpoint_age_s == 3.0


@pytest.mark.parametrize(
    ("limits", "share"),
    [({}, 0.6), ({"episodes": 400}, 0.9), ({"minutes": 0.4}, 20 / 24), ({"minutes": 0.1}, 1.0)],
)
def test_progress_follows_the_limit_that_comes_first(limits, share):
    view = View(Config(run=RunConfig(env_steps=50_000, **limits)), Clock())

    view.observe(logged(30_000, wall_s=20.0))

    assert view.progress == pytest.approx(share)


def test_clocks_stand_still_once_the_run_has_stopped():
    now = Clock()
    view = full_view(now)
    view.observe(stopped())

    now.s += 100.0

    assert view.wall_s == 72.4
    assert "ETA" not in shown(view, 80)


def live(width=80, **options):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=30, **options)
    return Live(full_view(), console, rate=200.0), console.file


def test_live_draws_at_80_columns_says_warnings_above_and_gives_the_cursor_back():
    sink, screen = live()

    sink.write(logged(31_000))
    sink.write(Warned(Counters(), "env", "see [/red] below"))
    sink.write(stopped())
    sink.close()

    said = screen.getvalue()
    assert "warning (env): see [/red] below" in said
    assert said.index("see [/red] below") < said.rindex("31,000 / 50,000 env steps")
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")
    assert "best score 480.0; solved" in said[said.rindex("╯") :].replace("\n", " ")


def test_closing_twice_and_without_an_end_is_fine():
    before = {*threading.enumerate()}
    sink, screen = live()

    sink.close()
    sink.close()

    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")
    assert eventually(lambda: not {*threading.enumerate()} - before, 5.0)


def test_no_color_means_no_colour(monkeypatch):
    for name, coloured in (("UNRELATED", True), ("NO_COLOR", False)):
        monkeypatch.setenv(name, "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        screen = Screen()

        sink = open_console(CONFIG, screen, terminal=True)
        sink.close()

        assert ("36m" in screen.getvalue()) is coloured


def test_a_terminal_that_goes_away_reaches_the_writer():
    class Gone(io.StringIO):
        gone = False

        def write(self, text):
            if self.gone:
                raise OSError(5, "Input/output error")
            return super().write(text)

    screen = Gone()
    sink = Live(full_view(), Console(file=screen, force_terminal=True, width=80), 200.0)
    screen.gone = True

    def failed() -> bool:
        try:
            sink.write(logged(1))
        except OSError as error:
            return "Input/output error" in str(error)
        return False

    assert eventually(failed, 5.0)
    screen.gone = False
    sink.close()


def test_the_panel_is_drawn_again_without_events():
    sink, screen = live()
    drawn = screen.getvalue().count("╭")
    deadline = time.monotonic() + 5

    while screen.getvalue().count("╭") == drawn and time.monotonic() < deadline:
        threading.Event().wait(0.002)
    sink.close()

    assert screen.getvalue().count("╭") > drawn


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (short(0.0), "0.0"),
        (short(3.14), "3.1"),
        (short(640.2), "640"),
        (short(999.6), "1.0k"),
        (short(3127), "3.1k"),
        (short(12_345), "12k"),
        (short(1.4e6), "1.4M"),
        (short(-2500), "-2.5k"),
        (score(0.938), "0.94"),
        (score(-143.21), "-143.2"),
        (score(12_345.6), "12,346"),
        (count(31_000), "31,000"),
        (count(12_500_000), "12.50M"),
        (clock(7.4), "0:07"),
        (clock(760), "12:40"),
        (clock(11_100), "3:05:00"),
        (clock(187_800), "2d 04:10"),
        (age(40), "40s"),
        (age(720), "12m"),
        (age(18_000), "5h"),
        (age(300_000), "3d"),
        (spark([], 5), ""),
        (spark([1.0, 1.0], 5), "▁▁"),
        (spark([0.0, 7.0, 3.0], 2), "█▁"),
        (spark([0.0, 1.0], 0), ""),
    ],
)
def test_figures_read_well(given, said):
    assert given == said
