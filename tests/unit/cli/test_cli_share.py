"""`rookery share`: from flags to the commands of its runs."""

import importlib.util
import io
import re
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from rookery.cli import share
from rookery.cli.main import main
from rookery.config.load import RUN_FILE
from rookery.errors import ConfigError
from rookery.report.console.runs_table import (
    PLAIN_S,
    STYLES,
    TITLES,
    Board,
    Standing,
    State,
    line,
    table,
)
from rookery.report.trackers.jsonl import Follower
from rookery.runtime import machine
from rookery.sharing.launcher import Job, tail
from rookery.terminal.arguments import Parser, parse


def read(*argv: str):
    parser = Parser(prog="rookery share", description=None)
    share.add_arguments(parser)
    return parse(parser, list(argv))


def planned(*argv: str) -> list[Job]:
    return [job for job, _ in share.plan(read(*argv), Path("runs/x"), Path("pool"))]


def settings(job: Job) -> dict[str, str]:
    """What a command sets, later words last."""
    pairs = zip(job.command, job.command[1:], strict=False)
    return dict(word.split("=", 1) for flag, word in pairs if flag == "--set")


def test_a_scenario_is_run_four_times_with_seeds_from_42():
    jobs = planned("--scenario", "sb3-sac")

    assert [job.seed for job in jobs] == [42, 43, 44, 45]
    assert [job.run_dir for job in jobs] == [Path(f"runs/x/sb3-sac-seed{s}") for s in range(42, 46)]
    for job in jobs:
        assert job.command[:3] == (sys.executable, "-m", "rookery.cli.tied_command")
        assert job.command[3:7] == ("train", "sb3-sac", "--seed", str(job.seed))
        assert settings(job) == {"sharing.pool": "pool"}
        assert job.shares


def test_the_flags_of_the_launcher_become_settings_of_the_runs():
    argv = "--scenario sb3-sac --n-parallel 1 --strategy weighted --cross-sample-ratio 0.3"
    (job,) = planned(*argv.split(), "--buffer-size", "9000", "--wandb", "--base-seed", "7")

    assert job.seed == 7
    assert settings(job) == {
        "sharing.pool": "pool",
        "sharing.strategy": "weighted",
        "sharing.cross_sample_ratio": "0.3",
        "replay.capacity": "9000",
        "report.wandb": "true",
    }


def test_hyphens_and_underscores_are_both_accepted():
    hyphens = "--scenario cartpole --n-parallel 2 --cross-sample-ratio 0.5 --base-seed 3 --no-wandb"
    underscores = re.sub(r"(?<=\w)-", "_", hyphens)

    assert "--n_parallel 2 --cross_sample_ratio" in underscores
    assert vars(read(*underscores.split())) == vars(read(*hyphens.split()))


def run(folder: Path, name: str, part: str, hidden: int) -> str:
    """Writes the scenario of a run in a league; returns its path."""
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nenv: {{id: pettingzoo_envs:Turns}}\nnet: {{hidden: [{hidden}]}}\n"
        f"selfplay: {{league: true, part: {part}, opponents: {{past: 1.0}}}}\n"
    )
    return str(path)


def test_the_runs_of_a_league_have_a_pool_though_they_share_no_rows(tmp_path):
    league = [run(tmp_path, part, part, hidden=8) for part in ("main", "exploiter")]

    jobs = planned("--scenarios", *league, "--strategy", "local_only")

    assert [settings(job)["sharing.pool"] for job in jobs] == ["pool", "pool"]
    assert all(job.shares for job in jobs)


def test_a_league_of_different_networks_is_refused(tmp_path):
    league = run(tmp_path, "league", "main", hidden=8)
    other = run(tmp_path, "other", "main", hidden=64)

    with pytest.raises(
        ConfigError, match=r"net.hidden \[64\], and .*league.yaml has dqn and \[8\]"
    ):
        planned("--scenarios", league, other)


def test_scenarios_are_run_once_each_or_n_times_each():
    once = planned("--scenarios", "sb3-sac", "sb3-td3")
    twice = planned("--scenarios", "sb3-sac", "sb3-td3", "--n-parallel", "2")

    assert [(job.scenario, job.seed) for job in once] == [("sb3-sac", 42), ("sb3-td3", 43)]
    assert [job.scenario for job in twice] == ["sb3-sac", "sb3-sac", "sb3-td3", "sb3-td3"]
    assert [job.seed for job in twice] == [42, 43, 44, 45]


def test_scenarios_need_no_flag():
    one, several = planned("sb3-sac"), planned("sb3-sac", "sb3-td3", "--base-seed", "7")

    assert one == planned("--scenario", "sb3-sac")
    assert [(job.scenario, job.seed) for job in several] == [("sb3-sac", 7), ("sb3-td3", 8)]


def test_gpus_go_round():
    jobs = planned("--scenario", "sb3-sac", "--n-parallel", "5", "--gpus", "0", "1")

    assert [job.gpu for job in jobs] == [0, 1, 0, 1, 0]
    assert [settings(job)["learner.device"] for job in jobs][:2] == ["cuda:0", "cuda:1"]


def test_without_sb3_nothing_is_started(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert main(["share", "--scenario", "sb3-sac", "--run-dir", str(tmp_path / "s")]) == 2
    assert "pip install 'rookery[sb3]'" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_extra_args_are_the_rest_of_the_line_and_go_to_every_run():
    argv = "--scenario sb3-sac --n-parallel 2 --extra_args --tag baseline_local --env-steps 700"

    for job in planned(*argv.split()):
        assert job.command[-4:] == ("--tag", "baseline_local", "--env-steps", "700")
        assert job.env_steps == 700


def test_alone_means_without_a_pool():
    for job in planned("--scenario", "sb3-sac", "--strategy", "local_only"):
        assert not job.shares
        assert "sharing.pool" not in settings(job)


def test_an_on_policy_scenario_runs_beside_the_others_and_that_is_said(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 64)
    args = read("--scenarios", "sb3-sac", "sb3-td3", "sb3-ppo")
    plan = share.plan(args, Path("x"), Path("pool"))

    assert [job.shares for job, _ in plan] == [True, True, False]
    (said,) = share.warnings(plan)
    assert "sb3-ppo-seed44: SB3 PPO is on-policy" in said
    assert "baseline" in said


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala"])
def test_our_own_algorithms_that_cannot_share_run_as_baselines(name, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 64)
    args = read("--scenarios", "cartpole", "cartpole", f"{name}-cartpole")
    plan = share.plan(args, Path("x"), Path("pool"))

    assert [job.shares for job, _ in plan] == [True, True, False]
    assert "sharing.pool" not in settings(plan[2][0])
    (said,) = share.warnings(plan)
    kind = "needs rows of its own policy" if name == "impala" else "is on-policy"
    assert said.startswith(f"{name}-cartpole-seed44: {name} {kind} and cannot learn from")
    assert said.endswith("it runs as a baseline and shares nothing")


def test_a_baseline_on_another_task_is_said_to_be_one(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 64)
    args = read("--scenarios", "cartpole", "acrobot", "ppo-cartpole", "--strategy", "local_only")
    *_, alone = share.plan(args, Path("x"), Path("pool"))
    mixed = share.plan(
        read("--scenarios", "sb3-sac", "sb3-td3", "ppo-cartpole"), Path("x"), Path("pool")
    )

    assert "its task" not in next(share.warnings([alone]))
    (said,) = share.warnings(mixed)
    assert "its task is CartPole-v1, and that of the others Pendulum-v1" in said


@pytest.mark.parametrize(
    ("argv", "cores", "said"),
    [
        ("--scenario sb3-sac", 2, "4 runs share 2 CPUs"),
        ("--scenario sb3-sac --n-parallel 1", 2, "no run to learn from"),
        ("--scenario sb3-sac --extra-args --episodes 20", 8, "these runs have at most 20 episodes"),
        (
            "--scenario sb3-sac --extra-args --env-steps 90",
            8,
            "these runs have at most 90 episodes",
        ),
    ],
)
def test_what_is_of_little_use_is_said_before_it_is_done(argv, cores, said, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: cores)

    (warning,) = share.warnings(share.plan(read(*argv.split()), Path("x"), Path("pool")))

    assert said in warning


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("", "nothing to train was named"),
        ("--scenario sb3-sac --scenarios sb3-td3", "not allowed with"),
        ("--scenario sacc", "did you mean 'sac'"),
        ("--scenario sb3-sac --n-parallel 0", "whole number above 0"),
        ("--scenario sb3-sac --base-seed -1", "at least 0"),
        ("--scenario sb3-sac --strategy selfish", "sharing.strategy must be one of"),
        ("--scenario sb3-sac --cross-sample-ratio 1.5", "sharing.cross_sample_ratio"),
        ("--scenario sb3-sac --n-paralel 3", "did you mean --n-parallel"),
        ("--scenarios sb3-sac sb3-dqn", "need the same environment, got Pendulum-v1"),
        ("--scenario cartpole --set replay.storage=disk", "replay.storage"),
        ("--scenario sb3-sac --cross-sample-ratio nan", "sharing.cross_sample_ratio"),
        ("--scenario sb3-sac --cross-sample-ratio inf", "sharing.cross_sample_ratio"),
        ("--scenario sb3-sac --buffer-size 0", "whole number above 0"),
        ("--scenario sb3-sac --n-parallel 1e9", "at most 1000 are allowed"),
        ("--scenario=", "the name of a scenario is empty"),
        ("--scenario sb3-sac --extra-args --seed 3", "use --base-seed"),
        ("--scenario sb3-sac --extra-args --run-dir=a", "use --run-dir in front"),
        ("--scenario sb3-sac --run-dir=", "needs the name of a folder"),
        ("--scenario sb3-sac --extra-args --tagg a", "did you mean --tag"),
        ("--scenario sb3-sac --gpus 99", "--gpus is 'cuda:99', but this machine has"),
    ],
)
def test_wrong_requests_start_nothing(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert main(["share", *argv.split()]) == 2

    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    (tmp_path / "sb3-sac-seed42").mkdir()
    (tmp_path / "sb3-sac-seed42" / RUN_FILE).touch()

    with pytest.raises(ConfigError, match="already holds a run"):
        share.plan(read("--scenario", "sb3-sac"), tmp_path, Path("pool"))


def test_a_standing_follows_the_record():
    standing = Standing("sac-seed42", 42, 10_000, True)
    assert standing.cells() == ("sac-seed42", "42", "0 / 10,000", "-", "-", "-", "starting")

    standing.observe({"event": "evaluated", "env_steps": 1_000, "score": -200.0})
    standing.observe({"event": "evaluated", "env_steps": 2_000, "score": -300.0})
    metrics = {"sharing/foreign_share": 0.198}
    standing.observe({"event": "logged", "env_steps": 2_000, "metrics": metrics})

    assert standing.cells()[2:] == ("2,000 / 10,000", "-300.0", "-200.0", "19.8%", "running")
    assert line(standing, 12) == (
        "sac-seed42    env_steps 2,000/10,000  score -300.0 (best -200.0)  foreign 19.8%  running"
    )


def test_who_shares_nothing_is_shown_as_alone():
    assert "foreign alone" in line(Standing("ppo", 1, 10, False))


def test_the_table_has_a_row_for_each_run_and_a_style_for_each_state():
    assert set(STYLES) == set(State)
    drawn = table([Standing("a", 1, 10, True), Standing("b", 2, 10, True)])

    assert drawn.row_count == 2
    assert tuple(column.header for column in drawn.columns) == TITLES


def test_without_a_terminal_there_are_lines_every_few_seconds_and_at_the_end():
    stream, clock = io.StringIO(), SimpleNamespace(now=0.0)
    board = Board([Standing("a", 1, 10, True)], stream, terminal=False, now=lambda: clock.now)
    with closing(board):
        board.show()
        assert stream.getvalue() == ""
        clock.now = PLAIN_S
        board.show()
        board.show()
        board.say("something")

    assert [text.split()[0] for text in stream.getvalue().splitlines()] == ["a", "something", "a"]


def test_a_follower_reads_each_whole_line_once(tmp_path):
    path, follower = tmp_path / "metrics.jsonl", Follower(tmp_path)
    assert follower.fresh() == []

    path.write_text('{"event": "logged", "env_steps": 1}\n{"event": "lo')
    assert [entry["env_steps"] for entry in follower.fresh()] == [1]
    with path.open("a") as file:
        file.write('gged", "env_steps": 2}\n')

    assert [entry["env_steps"] for entry in follower.fresh()] == [2]
    assert follower.fresh() == []


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    path = tmp_path / "log.txt"
    assert tail(path, 40) == []

    path.write_text("".join(f"line {i}\n" for i in range(10_000)))

    assert tail(path, 40) == [f"line {i}" for i in range(9_960, 10_000)]
