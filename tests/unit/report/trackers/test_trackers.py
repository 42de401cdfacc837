"""TensorBoard and Weights & Biases get the tags they should."""

import shutil
import threading
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eventually import eventually
from rookery.config.schema import Config, ReportConfig
from rookery.event import Counters, Evaluated, Logged, Reason, Stopped
from rookery.report.trackers.rewind import cut
from rookery.report.trackers.sinks import make_sinks
from rookery.report.trackers.tensorboard import TensorBoard
from rookery.report.trackers.wandb import Wandb


def logged(env_steps, loss=0.5):
    return Logged(Counters(env_steps), env_steps / 100, {"train/loss": loss, "time/fps": 10.0})


def evaluated(env_steps, score, wall_s=None, success_rate=0.25):
    wall_s = env_steps / 100 if wall_s is None else wall_s
    return Evaluated(
        Counters(env_steps), 1, wall_s, (score, score + 2), (7, 9), success_rate, True, False
    )


def curve(folder, tag):
    events = EventAccumulator(str(folder)).Reload()
    return [(point.step, point.value) for point in events.Scalars(tag)]


def test_tensorboard_has_the_tags_at_env_steps_and_the_score_over_seconds(tmp_path):
    sink = TensorBoard(tmp_path, resumed_at=None, resumed_s=0.0)
    for event in (logged(1000), logged(2000, 0.25), evaluated(1000, 5.0, wall_s=3.6)):
        sink.write(event)
    sink.close()

    assert curve(tmp_path / "tb", "train/loss") == [(1000, 0.5), (2000, 0.25)]
    assert curve(tmp_path / "tb", "eval/mean_reward") == [(1000, 6.0)]
    assert curve(tmp_path / "tb", "eval/mean_ep_length") == [(1000, 8.0)]
    assert curve(tmp_path / "tb", "eval/success_rate") == [(1000, 0.25)]
    assert curve(tmp_path / "tb" / "wall", "eval/mean_reward_by_second") == [(4, 6.0)]


def test_a_folder_that_is_gone_is_an_error_of_the_sink_and_no_traceback_of_a_thread(
    tmp_path, monkeypatch
):
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    sink = TensorBoard(tmp_path, resumed_at=None, resumed_s=0.0)
    shutil.rmtree(tmp_path / "tb")

    def failed() -> bool:
        try:
            sink.write(logged(1000))
        except OSError:
            return True
        return False

    assert eventually(failed, 30.0)
    with pytest.raises(OSError, match="No such file"):
        sink.close()
    assert printed == []
    assert threading.excepthook == printed.append


def test_an_error_of_another_thread_is_printed_while_tensorboard_is_open(tmp_path, monkeypatch):
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    sink = TensorBoard(tmp_path, resumed_at=None, resumed_s=0.0)
    thread = threading.Thread(target=lambda: 1 / 0)

    thread.start()
    thread.join()
    sink.close()

    assert [each.exc_type for each in printed] == [ZeroDivisionError]


def test_resumed_curves_do_not_double_back(tmp_path):
    """Steps go back to the mark, seconds to the mark's second, each by its own measure."""
    config = Config(report=ReportConfig(tensorboard=True))
    first = [logged(1000), evaluated(1000, 1.0), logged(2000), logged(3000), evaluated(3000, 8.0)]
    second = [logged(3000, 0.25), evaluated(3000, 3.0, wall_s=40.0)]

    for events, resumed_at in ((first, None), (second, 2000)):
        cut(tmp_path, resumed_at or 0)
        fan = make_sinks(tmp_path, config, resumed_at=resumed_at, stream=None, terminal=False)
        for event in events:
            assert fan.write(event) == []
        fan.close()

    assert curve(tmp_path / "tb", "train/loss") == [(1000, 0.5), (2000, 0.5), (3000, 0.25)]
    assert curve(tmp_path / "tb", "eval/mean_reward") == [(1000, 2.0), (3000, 4.0)]
    seconds = curve(tmp_path / "tb" / "wall", "eval/mean_reward_by_second")
    assert seconds == [(10, 2.0), (40, 4.0)]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return Config(name="cartpole", report=ReportConfig(wandb=True, tag="trial"))


def test_wandb_keeps_a_run_offline(tmp_path, offline):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    sink = Wandb(run_dir, offline)

    for event in (logged(1000), evaluated(500, 5.0), logged(2000)):
        sink.write(event)
    sink.write(Stopped(Counters(2000), Reason.TARGET, 1.0, 1.0, 6.0, True, "ab"))
    sink.close()

    (record,) = run_dir.glob("wandb/offline-run-*/run-rookery-*.wandb")
    for tag in (b"train/loss", b"eval/mean_reward", b"eval/mean_reward_by_second", b"trial"):
        # wandb writes from a process of its own, which may lag behind `finish`
        assert eventually(lambda tag=tag: tag in record.read_bytes(), within_s=20)


def test_a_tracker_that_fails_to_open_is_a_failure_of_write_and_close(tmp_path, monkeypatch):
    def refuse(run_dir, config):
        raise ConnectionError("no route")

    monkeypatch.setattr("rookery.report.trackers.wandb._open", refuse)
    sink = Wandb(tmp_path, Config(report=ReportConfig(wandb=True)))
    sink._thread.join(timeout=5)

    with pytest.raises(ConnectionError, match="no route"):
        sink.write(logged(1))
    with pytest.raises(ConnectionError, match="no route"):
        sink.close()


def test_a_tracker_that_hangs_does_not_hold_up_writing(tmp_path, monkeypatch):
    release = threading.Event()

    rows = []

    class Run:
        def log(self, row):
            rows.append(row)

        def finish(self):
            pass

    def hang(run_dir, config):
        release.wait(5)
        return Run()

    monkeypatch.setattr("rookery.report.trackers.wandb._open", hang)
    sink = Wandb(tmp_path, Config(report=ReportConfig(wandb=True)))

    began = time.monotonic()
    for step in range(100):
        sink.write(logged(step))
    took = time.monotonic() - began
    release.set()
    sink.close()

    assert took < 1.0
    assert [row["env_steps"] for row in rows] == list(range(100))
