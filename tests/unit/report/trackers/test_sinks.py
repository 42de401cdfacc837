"""No failure gets through the fan-out, and each is heard of once."""

import importlib.util
import io
import pickle

import pytest

from rookery.config.schema import Config, EvalConfig, ReportConfig
from rookery.errors import ConfigError
from rookery.event import Counters, Evaluated, Logged, Reason, Saved, Started, Stopped, Warned
from rookery.report.trackers import jsonl, sinks
from rookery.report.trackers.rewind import cut
from rookery.report.trackers.sinks import PATIENCE, Sinks, check, make_sinks

QUIET = Config(report=ReportConfig(tensorboard=False))


class Recorder:
    """Keeps what it gets."""

    def __init__(self):
        self.events, self.closed = [], False

    def write(self, event):
        self.events.append(event)

    def close(self):
        self.closed = True


class Broken(Recorder):
    """Raises at the calls whose numbers are given, or at all of them."""

    def __init__(self, at=None):
        super().__init__()
        self.at, self.calls = at, 0

    def write(self, event):
        self.calls += 1
        if self.at is None or self.calls in self.at:
            raise OSError("disk on fire")
        super().write(event)

    def close(self):
        super().close()
        raise OSError("still on fire")


def logged(env_steps):
    return Logged(Counters(env_steps), env_steps / 100, {"train/loss": 1.0})


def evaluated(env_steps, score):
    return Evaluated(Counters(env_steps), 1, env_steps / 100, (score,), (1,), None, True, False)


def test_a_failing_sink_is_reported_once_to_the_others_and_switched_off():
    broken, good = Broken(), Recorder()
    fan = Sinks({"broken": broken, "good": good})

    returned = [fan.write(logged(step)) for step in range(6)]

    (warned,) = returned[0]
    assert returned[1:] == [[]] * 5
    assert (warned.kind, warned.counters) == ("sink", Counters(0))
    assert "broken failed to write: OSError: disk on fire" in warned.message
    assert good.events == [logged(0), warned, *(logged(step) for step in range(1, 6))]
    assert broken.calls == PATIENCE


def test_a_sink_that_recovers_stays_on():
    shaky = Broken(at={1, 2, 4, 5})
    fan = Sinks({"shaky": shaky})

    returned = [fan.write(logged(step)) for step in range(8)]

    assert [len(warned) for warned in returned] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert [event.counters.env_steps for event in shaky.events] == [2, 5, 6, 7]


def test_two_broken_sinks_hear_of_each_other_and_nothing_goes_round_for_ever():
    good = Recorder()
    fan = Sinks({"a": Broken(), "b": Broken(), "good": good})

    warned = fan.write(logged(1))

    assert len(warned) == 2
    assert good.events == [logged(1), *warned]


def test_closing_reaches_every_sink_and_never_raises():
    broken, good = Broken(), Recorder()
    fan = Sinks({"broken": broken, "good": good})

    (warned,) = fan.close()

    assert broken.closed
    assert good.closed
    assert "broken failed to close: OSError: still on fire" in warned.message


def test_a_sink_that_cannot_be_opened_is_reported_with_the_first_event(tmp_path, monkeypatch):
    def refuse(run_dir):
        raise PermissionError("no")

    monkeypatch.setattr(sinks, "Csv", refuse)
    fan = make_sinks(tmp_path, QUIET, resumed_at=None, stream=None, terminal=False)

    (warned,) = fan.write(logged(1))
    again = fan.write(logged(2))
    fan.close()

    assert "csv failed to open: PermissionError: no" in warned.message
    assert again == []
    kinds = [entry["event"] for entry in jsonl.read(tmp_path)]
    assert kinds == ["logged", "warned", "logged"]


def test_a_record_that_cannot_be_read_or_written_is_a_warning(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    fan = make_sinks(tmp_path, QUIET, resumed_at=None, stream=None, terminal=False)

    warned = [*fan.write(logged(1)), *fan.write(logged(2)), *fan.close()]

    assert [event.message.split(":")[0] for event in warned] == ["jsonl failed to open"]
    assert len((tmp_path / "progress.csv").read_text().splitlines()) == 3


def test_the_config_says_which_sinks_there_are(tmp_path):
    stream = io.StringIO()

    fan = make_sinks(tmp_path, QUIET, resumed_at=None, stream=stream, terminal=False)
    fan.write(Started("here", Counters(), False, {"seed": 3}))
    fan.close()

    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "progress.csv"}
    assert stream.getvalue() == "started  seed 3  in here\n"


def test_without_a_stream_nothing_is_said(tmp_path, capsys):
    fan = make_sinks(tmp_path, QUIET, resumed_at=None, stream=None, terminal=True)
    fan.write(Warned(Counters(), "sink", "oh"))
    fan.close()

    assert capsys.readouterr() == ("", "")


def test_the_console_remembers_scores_of_earlier_sessions(tmp_path):
    fan = make_sinks(tmp_path, QUIET, resumed_at=None, stream=None, terminal=False)
    for event in (evaluated(1000, 7.0), evaluated(2000, 5.0), evaluated(3000, 99.0)):
        fan.write(event)
    fan.close()
    stream = io.StringIO()

    cut(tmp_path, 2000)
    fan = make_sinks(tmp_path, QUIET, resumed_at=2000, stream=stream, terminal=False)
    fan.write(logged(3000))
    fan.close()

    assert "score 5.00 (best 7.00)" in stream.getvalue()


def test_events_that_went_through_a_pipe_are_written_like_any_other(tmp_path):
    events = [
        Started("d", Counters(), False, {}),
        logged(1),
        evaluated(1, 2.0),
        Saved(Counters(1), "p", 0.0),
        Warned(Counters(1), "k", "m"),
        Stopped(Counters(1), Reason.ENV_STEPS, 1.0, 1.0, 2.0, False, "ab"),
    ]
    fan = make_sinks(tmp_path, QUIET, resumed_at=None, stream=io.StringIO(), terminal=False)

    warned = [fan.write(pickle.loads(pickle.dumps(event))) for event in events]
    fan.close()

    assert warned == [[]] * 6
    assert len(jsonl.read(tmp_path)) == 5


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        (Config(report=ReportConfig(wandb=True)), r"rookery\[wandb\]"),
        (Config(eval=EvalConfig(record=True)), r"rookery\[video\]"),
    ],
)
def test_a_missing_extra_is_refused_before_anything_starts(config, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=extra):
        check(config)


def test_a_missing_extra_is_no_mere_warning(tmp_path, monkeypatch):
    config = Config(report=ReportConfig(tensorboard=False, wandb=True))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"rookery\[wandb\]"):
        make_sinks(tmp_path, config, resumed_at=None, stream=None, terminal=False)


def test_what_is_installed_passes_the_check():
    check(Config(report=ReportConfig(wandb=True), eval=EvalConfig(record=True)))
    assert set(sinks.FATE) == {"open", "write", "close"}
