"""What `rookery train` makes of its flags."""

import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from rookery.cli import train
from rookery.cli.main import main
from rookery.config.load import RUN_FILE, dump, load
from rookery.config.parse import keys
from rookery.config.schema import Config, Inference
from rookery.errors import ConfigError
from rookery.event import Reason
from rookery.terminal.arguments import Parser, parse, seeds


def plan(*argv):
    return train.plan(read(*argv))


def read(*argv):
    parser = Parser(prog="rookery train", description=None)
    train.add_arguments(parser)
    return parse(parser, list(argv))


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / RUN_FILE).write_text(dump(load("corridor", changes={"run.seed": 5})))
    return str(tmp_path)


def test_every_flag_is_short_for_a_setting_that_exists():
    args = read("cartpole")

    assert {key for key in vars(args) if "." in key} <= set(keys())
    assert set(train.FIXED.values()) <= set(vars(args))


def test_flags_change_the_settings_they_are_short_for():
    (config,) = plan(
        *("cartpole", "--seed", "3", "--env-steps", "9000", "--episodes", "7", "--minutes", "1.5"),
        *("--target", "-2", "--device", "cpu", "--run-dir", "runs/a", "--tag", "7", "--wandb"),
        *("--mode", "single", "--env", "Acrobot-v1", "--set", "replay.batch_size=32"),
    )

    assert (config.run.seed, config.run.env_steps, config.run.episodes) == (3, 9000, 7)
    assert (config.run.minutes, config.eval.target) == (1.5, -2.0)
    assert (config.learner.device, config.run.run_dir) == ("cpu", "runs/a")
    assert (config.report.tag, config.report.wandb) == ("7", True)
    assert (config.env.id, config.replay.batch_size) == ("Acrobot-v1", 32)


def test_without_flags_the_scenario_stands(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("report: {wandb: true}")

    assert plan("cartpole") == [load("cartpole")]
    assert plan(str(path))[0].report.wandb is True


def test_a_flag_wins_over_set():
    assert plan("cartpole", "--seed", "3", "--set", "run.seed=4")[0].run.seed == 3


def test_an_environment_is_enough():
    assert plan("--env", "Acrobot-v1")[0].env.id == "Acrobot-v1"


@pytest.mark.parametrize(
    "order",
    [
        ("--resume", "DIR"),
        ("DIR", "--resume"),
        ("--resume", "--exact", "DIR"),
        ("--exact", "--resume", "DIR"),
        ("--resume", "DIR", "--exact"),
        ("--set", "actor.envs=2", "--resume", "DIR", "--json"),
    ],
)
def test_resume_takes_the_folder_wherever_it_stands(run_dir, order):
    argv = [run_dir if word == "DIR" else word for word in order]

    args = read(*argv)

    assert args.resume
    assert args.source == run_dir
    assert args.exact == ("--exact" in order)
    assert train.plan(args)[0].run.seed == 5


def test_resume_may_change_settings_and_stop_conditions(run_dir):
    (config,) = plan(
        *("--resume", run_dir, "--env-steps", "90000", "--device", "cpu", "--target", "1"),
        *("--set", "learner.lr=0.5"),
    )

    assert (config.run.env_steps, config.learner.device) == (90_000, "cpu")
    assert (config.eval.target, config.learner.lr) == (1.0, 0.5)


@pytest.mark.parametrize(
    "flag",
    [
        ("--seed", "1"),
        ("--seeds", "0-1"),
        ("--env", "X-v1"),
        ("--run-dir", "x"),
        ("--tag", "x"),
        ("--mode", "single"),
        ("--init-from", "x"),
    ],
)
def test_resume_refuses_what_a_run_cannot_change(run_dir, flag):
    with pytest.raises(ConfigError, match=rf"{flag[0]} cannot change with --resume"):
        plan("--resume", run_dir, *flag)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "nothing to train"),
        (["--resume"], "needs the run folder"),
        (["--resume", "absent"], "no run folder 'absent'"),
        (["--exact", "cartpole"], "--exact needs --resume"),
        (["cartpol"], "did you mean 'cartpole'?"),
        (["cartpole", "--sed", "3"], "did you mean --seed?"),
        (["cartpole", "--env-step", "3"], "did you mean --env-steps?"),
        (["cartpole", "--seed", "x"], "--seed"),
        (["cartpole", "--seed", "-1"], "run.seed must be at least 0"),
        (["cartpole", "--init-from="], "--init-from needs a run folder"),
        ([""], "the name of a scenario is empty"),
        (
            ["cartpole", "--set", "learner.publish_min_interval_s=-1"],
            "learner.publish_min_interval_s must be at least 0",
        ),
        (["cartpole", "--seed", "1", "--seeds", "0-4"], "not allowed with"),
        (["cartpole", "--seeds", "4-0"], "go up"),
        (["cartpole", "--env-steps", "10"], "learning would never start"),
        (["cartpole", "--device", "tpu"], "auto, cpu or cuda:N"),
        (["cartpole", "--mode", "fast"], "one of single"),
        (["cartpole", "--minutes", "nan"], "finite"),
        (["cartpole", "--target", "inf"], "finite"),
        (["cartpole", "--set", "replay.batchsize=3"], "did you mean replay.batch_size?"),
        (["cartpole", "--set"], "--set"),
        (["cartpole", "--run-dir", ""], "--run-dir"),
        (["cartpole", "--seeds", "0-1", "--run-dir", ""], "--run-dir"),
        (["cartpole", "--set", "run.run_dir=''"], "run.run_dir must name a folder"),
        (["cartpole", "--tag", "../../etc"], "report.tag"),
    ],
)
def test_a_wrong_request_is_exit_code_2(argv, said, capsys):
    assert main(["train", *argv]) == 2

    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("rookery: error: ")


@pytest.mark.parametrize(
    ("text", "found"),
    [("100000", 100_000), ("1e5", 100_000), ("100_000", 100_000), ("2.5e6", 2_500_000)],
)
def test_whole_numbers_may_be_written_with_exponents_and_underscores(text, found):
    (config,) = plan("cartpole", "--env-steps", text)

    assert config.run.env_steps == found


@pytest.mark.parametrize("text", ["1.5", "1.5e0", "15e-1", "inf", "nan", "1e999", "", "1__0", "٣"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(ConfigError, match="--env-steps: needs a whole number"):
        read("cartpole", f"--env-steps={text}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0-4", [0, 1, 2, 3, 4]),
        ("0,2,5", [0, 2, 5]),
        ("7", [7]),
        ("0-1, 8", [0, 1, 8]),
    ],
)
def test_seeds_are_ranges_and_lists(text, found):
    assert seeds(text) == found


@pytest.mark.parametrize("text", ["", "a", "0-", "-3", "4-0", "0,0", "0-2,1", "0-99999999", "1.5"])
def test_wrong_seeds_are_refused(text):
    with pytest.raises(ConfigError, match="--seeds"):
        read("cartpole", f"--seeds={text}")


def test_several_seeds_are_several_runs():
    found = plan("cartpole", "--seeds", "0,3")

    assert [config.run.seed for config in found] == [0, 3]
    assert [config.run.run_dir for config in found] == [None, None]


def test_several_seeds_share_a_parent_folder():
    found = plan("cartpole", "--seeds", "0,3", "--run-dir", "runs/a")

    assert [config.run.run_dir for config in found] == ["runs/a/seed-0", "runs/a/seed-3"]


def test_a_printed_config_trains_the_same(tmp_path, capsys):
    argv = ["--set", "replay.batch_size=32", "--seed", "3", "--device", "cpu"]
    path = tmp_path / "again.yaml"

    assert main(["train", "acrobot", *argv, "--print-config"]) == 0
    path.write_text(capsys.readouterr().out)

    assert plan(str(path)) == plan("acrobot", *argv)


def test_a_printed_config_may_be_json(capsys):
    assert main(["train", "corridor", "--print-config", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["env"]["kwargs"] == {"length": 8}


def test_the_defaults_can_be_printed(capsys):
    assert main(["train", "--print-config"]) == 0

    assert "replay:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("score", "reason", "said", "goes_on"),
    [
        (None, "minutes", "never evaluated, time limit reached", True),
        (12.0, "interrupted", "best score 12.00, interrupted", True),
        (487.25, "target", "best score 487.25, solved", False),
        (99.5, "env_steps", "best score 99.50, env step limit reached", False),
    ],
)
def test_the_summary_says_how_to_go_on(score, reason, said, goes_on):
    answer = {
        "run_dir": "runs/a",
        "env_steps": 12_500,
        "train_s": 3.25,
        "best_score": score,
        "solved": reason == "target",
        "reason": reason,
    }

    first, *others = train.summary(answer, Config())

    assert f"runs/a: {said} after 12,500 env steps" in first
    assert [line.strip() for line in others] == [
        "rookery evaluate runs/a",
        *(["rookery train --resume runs/a"] if goes_on else []),
    ]


def test_every_reason_to_stop_has_its_words():
    assert {*train.VERDICTS, "failed"} == set(Reason)
    assert set(train.UNFINISHED) < set(train.VERDICTS)


@pytest.fixture
def launched(monkeypatch):
    """Replaces real runs by exit codes; returns what each was asked to do."""
    asked, codes = [], []

    def launch(config, **request):
        asked.append((config.run.seed, request))
        answer = {"run_dir": "runs/a", "best_score": 1.0, "env_steps": 1, "train_s": 1.0}
        answer |= {"solved": True, "reason": "target", "seed": config.run.seed}
        return SimpleNamespace(answer=answer, exit_code=codes.pop(0) if codes else 0)

    module = ModuleType("rookery.training.launch")
    module.launch = launch
    monkeypatch.setitem(sys.modules, "rookery.training.launch", module)
    return SimpleNamespace(asked=asked, codes=codes)


def test_one_run_answers_with_its_own_json(launched, capsys):
    assert main(["train", "cartpole", "--json", "--quiet", "--init-from", "runs/b"]) == 0

    assert json.loads(capsys.readouterr().out.splitlines()[-1])["seed"] == 0
    wanted = {"resume": None, "exact": False, "init_from": "runs/b", "quiet": True}
    assert launched.asked == [(0, wanted)]


def test_resume_hands_the_folder_on(launched, run_dir):
    assert main(["train", "--resume", "--exact", run_dir]) == 0

    ((seed, request),) = launched.asked
    assert (seed, str(request["resume"]), request["exact"]) == (5, run_dir, True)


def test_several_seeds_answer_with_a_list(launched, capsys):
    assert main(["train", "cartpole", "--seeds", "0-2", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [run["seed"] for run in answer["runs"]] == [0, 1, 2]


def test_a_failed_seed_is_the_exit_code_but_not_the_end(launched):
    launched.codes += [0, 3, 0]

    assert main(["train", "cartpole", "--seeds", "0-2"]) == 3
    assert [seed for seed, _ in launched.asked] == [0, 1, 2]


@pytest.mark.parametrize("code", [130, 143])
def test_a_signal_ends_all_seeds(launched, capsys, code):
    launched.codes += [0, code, 0]

    assert main(["train", "cartpole", "--seeds", "0-2", "--json"]) == code
    assert [seed for seed, _ in launched.asked] == [0, 1]
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_actors_on_a_device_that_is_not_there_are_refused(tmp_path, capsys):
    where = ["--mode", "async", "--actor-devices", "cpu,cuda:99", "--run-dir", str(tmp_path / "a")]

    assert main(["train", "corridor", *where]) == 2
    assert "actor.devices is 'cuda:99'" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_who_answers_actors_is_a_flag_and_is_refused_where_it_means_nothing(capsys):
    (config,) = plan("corridor", "--mode", "async", "--inference", "central")

    assert config.actor.inference is Inference.CENTRAL
    assert main(["train", "corridor", "--inference", "central"]) == 2
    assert (
        "takes run.mode sync or async only, got single; use one of them" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["cartpole", "--buffer-size", "1"], "Rookery calls it replay.capacity"),
        (["cartpole", "--learning-rate", "1"], "Rookery calls it learner.lr"),
        (["cartpole", "--total-timesteps", "1"], "Rookery calls it run.env_steps"),
        (["cartpole", "--algo", "ppoo"], "did you mean 'ppo'?"),
        (["cartpole", "--learning-rate", "1"], "write --set learner.lr=VALUE"),
        (["cartpole", "--total-timesteps", "1"], "write --env-steps."),
        (["cartpole", "--learning-starts", "1"], "write --set replay.learning_starts=VALUE"),
        (["cartpole", "--train-freq", "1"], "write --set replay.samples_per_insert=VALUE"),
        (["cartpole", "--set", "learner.learning_rate=1"], "Rookery calls it learner.lr"),
        (["cartpole", "--algorithm", "sac"], "did you mean --algo?"),
    ],
)
def test_names_of_stable_baselines3_are_answered_with_ours(argv, said, capsys):
    assert main(["train", *argv]) == 2

    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--verbose", "--policy", "--zzz"])
def test_only_what_is_near_is_suggested(flag, capsys):
    assert main(["train", "cartpole", flag, "1"]) == 2

    said = capsys.readouterr().err
    assert "did you mean" not in said
    assert "Rookery calls it" not in said


@pytest.mark.parametrize(
    "argv", [["sac", "--env", "Pendulum-v1"], ["Pendulum-v1", "--algo", "sac"]]
)
def test_an_algorithm_or_an_environment_stands_in_the_place_of_a_scenario(argv):
    (config,) = plan(*argv)

    wanted = load(changes={"algo.name": "sac", "env.id": "Pendulum-v1"})
    assert replace(config, name=wanted.name) == wanted


def test_an_environment_alone_is_trained_in_with_dqn():
    assert plan("CartPole-v1") == [load(changes={"env.id": "CartPole-v1"})]
    assert plan("CartPole-v1")[0].algo.name == "dqn"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["sac"], "rookery train sac --env ID (in Python env=...), or rookery train sac-pendulum"),
        (["CartPole-v1", "--env", "Acrobot-v1"], "two environments were given"),
    ],
)
def test_half_a_task_is_refused_in_one_line(argv, said, capsys):
    assert main(["train", *argv]) == 2

    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_an_algorithm_is_chosen_by_a_flag(capsys):
    argv = ["train", "--algo", "sac", "--env", "Pendulum-v1", "--print-config", "--json"]
    assert main(argv) == 0

    config = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert config["algo"]["name"] == "sac"
    assert config["env"]["id"] == "Pendulum-v1"
