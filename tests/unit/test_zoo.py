"""Files of the RL Baselines3 Zoo become scenarios, and what is lost is told."""

import json

import pytest

from rookery.cli.main import main
from rookery.config import algorithms, translate, zoo
from rookery.config.load import load
from rookery.config.schema import Backend, Config, Decay
from rookery.errors import ConfigError

FILE = """
default: &usual
  n_timesteps: !!float 6e4
  policy: 'MlpPolicy'

CartPole-v1:
  <<: *usual
  learning_rate: !!float 2e-3
  batch_size: 128
  buffer_size: 20000
  learning_starts: 600
  gamma: 0.97
  target_update_interval: 640
  train_freq: 32
  gradient_steps: 16
  exploration_fraction: 0.25
  exploration_final_eps: 0.08
  policy_kwargs: "dict(net_arch=[96, 48], activation_fn=nn.ELU)"

Acrobot-v1: &acrobot
  <<: *usual
  learning_rate: lin_5e-4
  n_envs: 4
  train_freq: 8
  gradient_steps: -1
  learning_starts: 0
  normalize: "dict(norm_obs=True, norm_reward=False, clip_obs=5)"

Acrobot-v0:
  <<: *acrobot
  n_envs: 2
  frame_stack: 3
  callback: somewhere.Callback

atari:
  env_wrapper:
    - stable_baselines3.common.atari_wrappers.AtariWrapper
  frame_stack: 4
  policy: 'CnnPolicy'
  n_timesteps: 3e6
"""


@pytest.fixture
def file(tmp_path):
    def write(name: str, text: str):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def dqn(file):
    return file("dqn.yml", FILE)


def _config(imported: zoo.Imported, tmp_path) -> Config:
    """Returns the scenario as `rookery train` reads it from its file."""
    path = tmp_path / "imported.yaml"
    path.write_text(imported.text())
    return load(path)


def test_every_setting_of_an_entry_is_found_in_its_scenario(dqn, tmp_path):
    imported = zoo.read(dqn, "CartPole-v1")
    config = _config(imported, tmp_path)

    assert imported.notes == []
    assert (config.env.id, config.algo.name, config.run.env_steps) == ("CartPole-v1", "dqn", 60_000)
    assert (config.learner.lr, config.learner.lr_decay) == (0.002, Decay.CONSTANT)
    assert (config.replay.batch, config.replay.capacity, config.replay.warmup) == (128, 20_000, 600)
    assert (config.algo.gamma, config.net.hidden, config.net.activation) == (0.97, (96, 48), "elu")
    assert config.replay.samples_per_insert == 128 * 16 / 32
    assert config.algo.target_period == 640 * 16 // 32
    assert (config.actor.epsilon_end, config.actor.epsilon_steps) == (0.08, 15_000)
    assert (config.actor.envs, config.actor.chunk, config.actor.pull_period) == (1, 32, 32)


def test_what_a_file_leaves_out_is_as_sb3_has_it(file):
    path = file("dqn.yml", "CartPole-v1: {n_timesteps: 1000000}")

    found = zoo.read(path, "CartPole-v1").settings

    assert found["replay"] == {
        "capacity": 1_000_000,
        "warmup": 100,
        "batch": 32,
        "samples_per_insert": 8.0,
    }
    assert found["learner"]["lr"] == 1e-4
    assert found["net"] == {"hidden": [64, 64]}
    assert found["algo"]["double"] is False
    assert found["algo"]["target_period"] == 2_500


def test_a_merged_entry_has_what_it_merges_and_its_own(dqn):
    old = zoo.read(dqn, "Acrobot-v0").settings
    new = zoo.read(dqn, "Acrobot-v1").settings

    assert (old["actor"]["envs"], new["actor"]["envs"]) == (2, 4)
    assert old["env"]["frame_stack"] == 3
    assert "frame_stack" not in new["env"]
    assert old["learner"]["lr"] == new["learner"]["lr"] == 5e-4
    assert old["run"]["env_steps"] == 60_000


def test_minus_one_gradient_steps_is_one_for_each_env_step(dqn):
    found = zoo.read(dqn, "Acrobot-v1").settings

    assert found["actor"]["chunk"] == 8 * 4
    assert found["replay"]["samples_per_insert"] == found["replay"]["batch"] == 32
    assert found["algo"]["target_period"] == 10_000


def test_a_linear_rate_goes_down_to_nothing(dqn, tmp_path):
    learner = _config(zoo.read(dqn, "Acrobot-v1"), tmp_path).learner

    assert (learner.lr, learner.lr_end, learner.lr_decay) == (5e-4, 0.0, Decay.LINEAR)


def test_what_has_no_place_is_told_and_stands_in_the_file(dqn):
    imported = zoo.read(dqn, "Acrobot-v0")

    assert imported.notes == [
        "learning_starts: 0 is changed: replay.warmup is 32: it must hold a batch",
        "normalize.clip_obs: 5 is left out: nothing here does that",
        "callback: somewhere.Callback is left out: nothing here does that",
    ]
    for note in imported.notes:
        assert f"#   {note}\n" in imported.text()


def test_nothing_is_told_of_what_is_switched_off_by_itself_too(file):
    off = "use_sde: false, callback: null, policy_kwargs: {ortho_init: false}"

    notes = zoo.read(file("dqn.yml", f"A-v0: {{n_timesteps: 500, {off}}}"), "A-v0").notes

    assert notes == ["policy_kwargs.ortho_init: false is left out: nothing here does that"]


@pytest.mark.parametrize(
    ("env_id", "entry"),
    [
        ("Acrobot-v0", "Acrobot-v0"),
        ("Acrobot-v7", "Acrobot-v1"),
        ("ALE/Pong-v5", "atari"),
        ("PongNoFrameskip-v4", "atari"),
        ("Other-v1", "default"),
    ],
)
def test_an_environment_without_an_entry_takes_a_near_one_and_says_so(dqn, env_id, entry):
    imported = zoo.read(dqn, env_id)

    assert imported.settings["env"]["id"] == env_id
    assert imported.origin == f"dqn.yml, {entry}"
    told = f"{entry}: the file has no {env_id}, these are its settings"
    assert imported.notes[:1] == ([] if entry == env_id else [told]) or entry == env_id


def test_games_are_prepared_by_gymnasiums_wrapper_with_one_frame_skip(dqn, tmp_path):
    config = _config(zoo.read(dqn, "ALE/Pong-v5"), tmp_path)

    assert config.env.kwargs == {"frameskip": 1}
    assert config.env.imports == ("ale_py",)
    assert config.env.wrappers == ({"AtariPreprocessing": {"frame_skip": 4, "screen_size": 84}},)
    assert (config.env.frame_stack, config.env.reward_clip) == (4, 1.0)
    assert config.net.hidden == (512,)
    assert config.run.env_steps == 3_000_000
    assert (config.eval.period, config.checkpoint.period) == (75_000, 300_000)


def test_every_algorithm_of_the_zoo_is_one_of_ours():
    assert {row.name for row in translate.ALGORITHMS.values()} <= set(algorithms.ALGORITHMS)


@pytest.mark.parametrize("name", translate.ALGORITHMS)
def test_every_algorithm_takes_the_defaults_of_its_zoo(file, name, tmp_path):
    imported = zoo.read(file(f"{name}.yml", "Pendulum-v1: {n_timesteps: 200000}"), "Pendulum-v1")

    config = _config(imported, tmp_path)

    assert config.algo.name == translate.ALGORITHMS[name].name
    assert imported.notes == []


SAC = """
Pendulum-v1:
  n_timesteps: 20000
  ent_coef: 0.05
  tau: 0.02
  target_entropy: -0.5
  target_update_interval: 2
  noise_type: normal
  use_sde: true
  replay_buffer_class: HerReplayBuffer
  replay_buffer_kwargs: "dict(n_sampled_goal=3, goal_selection_strategy='future')"
  policy_kwargs: "dict(net_arch=dict(pi=[32], qf=[64]), log_std_init=-2, n_critics=3)"
"""


def test_soft_actor_critic_has_its_own_words(file):
    imported = zoo.read(file("tuned.yml", SAC), "Pendulum-v1", algorithm="sac")
    found = imported.settings

    assert found["algo"] == {
        "name": "sac",
        "gamma": 0.99,
        "target_tau": 0.02,
        "critics": 3,
        "temperature": 0.05,
        "entropy_target": -0.5,
    }
    assert found["replay"]["hindsight"] == 0.75
    assert found["learner"]["max_grad_norm"] is None
    assert [note.partition(":")[0] for note in imported.notes] == [
        "target_update_interval",
        "noise_type",
        "use_sde",
        "policy_kwargs.net_arch",
        "policy_kwargs.log_std_init",
    ]


def test_steps_of_a_replay_are_summed(file):
    path = file("dqn.yml", "A-v0: {n_timesteps: 2000, n_steps: 3}")

    assert zoo.read(path, "A-v0").settings["algo"]["n_step"] == 3


PPO = """
CartPole-v1:
  n_timesteps: !!float 1e5
  n_envs: 4
  n_steps: 64
  batch_size: 128
  n_epochs: 7
  gae_lambda: 0.9
  ent_coef: 0.01
  vf_coef: 0.6
  clip_range: lin_0.3
  max_grad_norm: 0.7
  target_kl: 0.02
  policy_kwargs: "dict(net_arch=[dict(pi=[32, 16], vf=[32, 16])], ortho_init=False)"
"""


def test_a_rollout_is_all_steps_of_all_environments(file, tmp_path):
    imported = zoo.read(file("ppo.yml", PPO), "CartPole-v1")
    config = _config(imported, tmp_path)

    assert (config.actor.envs, config.actor.chunk, config.actor.pull_period) == (4, 256, 256)
    assert (config.replay.batch, config.algo.epochs, config.algo.gae_lambda) == (128, 7, 0.9)
    assert (config.algo.entropy_bonus, config.algo.value_weight) == (0.01, 0.6)
    assert (config.algo.clip, config.learner.max_grad_norm) == (0.3, 0.7)
    assert (config.net.hidden, config.net.activation) == ((32, 16), "tanh")
    assert [note.partition(":")[0] for note in imported.notes] == [
        "clip_range",
        "target_kl",
        "policy_kwargs.ortho_init",
    ]


@pytest.mark.parametrize(
    ("said", "optimizer", "kwargs"),
    [
        ("", "rmsprop", {"alpha": 0.99, "eps": 1e-5}),
        (", rms_prop_eps: 1e-4", "rmsprop", {"alpha": 0.99, "eps": 1e-4}),
        (", use_rms_prop: false", "adam", {}),
    ],
)
def test_a2c_has_its_own_optimizer(file, tmp_path, said, optimizer, kwargs):
    path = file("a2c.yml", f"A-v0: {{n_timesteps: 20000{said}}}")

    learner = _config(zoo.read(path, "A-v0"), tmp_path).learner

    assert (learner.optimizer, learner.optimizer_kwargs) == (optimizer, kwargs)


def test_an_optimizer_of_the_policy_comes_before_that_of_the_algorithm(file, tmp_path):
    kwargs = "'dict(optimizer_class=RMSpropTFLike, optimizer_kwargs=dict(eps=0.5))'"
    path = file("a2c.yml", f"A-v0: {{n_timesteps: 20000, policy_kwargs: {kwargs}}}")

    imported = zoo.read(path, "A-v0")
    learner = _config(imported, tmp_path).learner

    assert (learner.optimizer, learner.optimizer_kwargs) == ("rmsprop", {"eps": 0.5})
    assert [note.partition(":")[0] for note in imported.notes] == ["policy_kwargs.optimizer_class"]


def test_deterministic_policies_have_their_noise_and_their_delay(file, tmp_path):
    text = (
        "A-v0: {n_timesteps: 20000, noise_type: ornstein-uhlenbeck, noise_std: 0.3,"
        " policy_delay: 3, target_policy_noise: 0.1, target_noise_clip: 0.4}"
    )
    imported = zoo.read(file("td3.yml", text), "A-v0")
    algo = _config(imported, tmp_path).algo

    assert (algo.noise, algo.policy_period) == (0.3, 3)
    assert (algo.target_noise, algo.target_noise_clip) == (0.1, 0.4)
    assert imported.notes == ["noise_type: ornstein-uhlenbeck is changed: the noise is normal"]
    assert zoo.read(file("ddpg.yml", text), "A-v0").notes[1:] == [
        "policy_delay: 3 is left out: ddpg has no such setting here",
        "target_policy_noise: 0.1 is left out: ddpg has no such setting here",
        "target_noise_clip: 0.4 is left out: ddpg has no such setting here",
    ]


def test_quantiles_are_counted_by_their_own_names(file, tmp_path):
    text = (
        "A-v0: {n_timesteps: 20000, top_quantiles_to_drop_per_net: 3,"
        " policy_kwargs: 'dict(n_quantiles=20, n_critics=4)'}"
    )
    tqc = _config(zoo.read(file("tqc.yml", text), "A-v0"), tmp_path).algo
    plain = file("qrdqn.yml", "A-v0: {n_timesteps: 20000, policy_kwargs: 'dict(n_quantiles=50)'}")
    qrdqn = _config(zoo.read(plain, "A-v0"), tmp_path).algo

    assert (tqc.dropped, tqc.quantiles, tqc.critics) == (3, 20, 4)
    assert (qrdqn.values, qrdqn.quantiles, qrdqn.double) == ("quantiles", 50, False)


@pytest.mark.parametrize(
    ("given", "temperature"),
    [("auto", {}), ("auto_0.2", {"first_temperature": 0.2}), ("0.3", {"temperature": 0.3})],
)
def test_an_entropy_coefficient_is_a_temperature(file, given, temperature):
    path = file("sac.yml", f"A-v0: {{n_timesteps: 2000, ent_coef: {given}}}")

    algo = zoo.read(path, "A-v0").settings["algo"]

    assert {k: v for k, v in algo.items() if "temperature" in k} == temperature


@pytest.mark.parametrize(
    ("wrapper", "known", "told"),
    [
        ("gymnasium.wrappers.TimeAwareObservation", ["TimeAwareObservation"], None),
        (
            "{gymnasium.wrappers.ClipReward: {min_reward: -1}}",
            [{"ClipReward": {"min_reward": -1}}],
            None,
        ),
        ("[my.own.Skip, your.Shift]", ["my.own:Skip", "your:Shift"], "needs my"),
        ("{gym.wrappers.time_limit.TimeLimit: {max_episode_steps: 77}}", None, None),
        ("utils.wrappers.TimeFeature", None, "old gym"),
        ("null", None, None),
    ],
)
def test_wrappers_become_names_that_the_env_section_takes(file, wrapper, known, told):
    path = file("dqn.yml", f"A-v0: {{n_timesteps: 2000, env_wrapper: {wrapper}}}")

    imported = zoo.read(path, "A-v0")

    assert imported.settings["env"].get("wrappers") == known
    assert (told or "") in " ".join(imported.notes)
    assert bool(imported.notes) == (told is not None)
    if "TimeLimit" in wrapper:
        assert imported.settings["env"]["max_episode_steps"] == 77


def test_with_sb3_settings_stay_what_they_are(dqn, tmp_path):
    imported = zoo.read(dqn, "CartPole-v1", backend=Backend.SB3)
    config = _config(imported, tmp_path)

    assert imported.notes == [
        "policy_kwargs.activation_fn: nn.ELU is left out: backend sb3 takes net_arch alone"
    ]
    assert (config.backend, config.sb3.algorithm, config.sb3.envs) == ("sb3", "DQN", 1)
    assert (config.run.env_steps, config.replay.capacity) == (60_000, 20_000)
    assert config.sb3.kwargs == {
        "learning_rate": 0.002,
        "batch_size": 128,
        "learning_starts": 600,
        "gamma": 0.97,
        "target_update_interval": 640,
        "train_freq": 32,
        "gradient_steps": 16,
        "exploration_fraction": 0.25,
        "exploration_final_eps": 0.08,
        "policy_kwargs": {"net_arch": [96, 48]},
    }


def test_with_sb3_what_it_cannot_take_is_told(file, tmp_path):
    text = (
        "A-v0: {n_timesteps: 2000, n_envs: 2, clip_range: lin_0.2, normalize: true, frame_stack: 2,"
        " policy_kwargs: 'dict(net_arch=[8, dict(pi=[16], vf=[32])])', noise_type: normal}"
    )
    imported = zoo.read(file("ppo.yml", text), "A-v0", backend=Backend.SB3)
    config = _config(imported, tmp_path)

    assert [note.partition(":")[0] for note in imported.notes] == ["clip_range", "normalize"]
    assert config.sb3.envs == 2
    assert config.sb3.kwargs["clip_range"] == 0.2
    assert config.sb3.kwargs["policy_kwargs"] == {"net_arch": {"pi": [8, 16], "vf": [8, 32]}}
    assert config.env.wrappers == ({"FrameStackObservation": {"stack_size": 2}},)


@pytest.mark.parametrize(
    ("name", "text", "env_id", "said"),
    [
        ("trpo.yml", "A-v0: {n_timesteps: 9}", "A-v0", ["'trpo'", "dqn, qrdqn, sac", "--algo"]),
        ("dqn.yml", FILE.replace("default", "other"), "CartPol-v1", ["'CartPole-v1'?", "--env"]),
        ("dqn.yml", "A-v0: {gamma: 0.9}", "A-v0", ["n_timesteps", "add"]),
        ("dqn.yml", "A-v0: 3", "A-v0", ["is 3", "mapping"]),
        ("dqn.yml", "[1]", "A-v0", ["list", "mapping"]),
        ("dqn.yml", "A-v0: {n_timesteps: many}", "A-v0", ["'many'", "a number", "correct"]),
        ("dqn.yml", "A-v0: {n_timesteps: 10.5}", "A-v0", ["10.5", "whole number", "correct"]),
        ("dqn.yml", "A-v0: {n_timesteps: 9e3, learning_rate: lin_x}", "A-v0", ["lin_x", "number"]),
        (
            "dqn.yml",
            "A-v0: {n_timesteps: 9e3, env_wrapper: {}}",
            "A-v0",
            ["env_wrapper", "correct"],
        ),
        ("dqn.yml", "A-v0: {n_timesteps: 9e3, train_freq: 0}", "A-v0", ["train_freq", "correct"]),
        ("dqn.yml", "A-v0: {n_timesteps: 9e3, policy_kwargs: [1]}", "A-v0", ["policy_kwargs"]),
        (
            "dqn.yml",
            "A-v0: {n_timesteps: 9e3, policy_kwargs: \"dict(a=__import__('os'))\"}",
            "A-v0",
            ["policy_kwargs of A-v0", "__import__", "it may hold", "write the value out"],
        ),
        ("dqn.yml", "A-v0: {x: !!python/name:os.system }", "A-v0", ["tag", "remove"]),
        ("dqn.yml", "A-v0: &a {x: *a}", "A-v0", ["alias", "inside", "line 1"]),
        ("dqn.yml", "A-v0: {x: 1, x: 2}", "A-v0", ["second time"]),
    ],
)
def test_what_cannot_be_imported_is_refused_with_what_to_do(file, name, text, env_id, said):
    with pytest.raises(ConfigError) as refused:
        zoo.read(file(name, text), env_id)

    assert [part for part in said if part not in str(refused.value)] == []


def test_aliases_that_stand_for_too_much_are_refused_before_anything_is_made(file):
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)]

    with pytest.raises(ConfigError, match="stand for more than"):
        zoo.read(file("dqn.yml", "\n".join(lines)), "a8")


def test_no_name_in_a_file_can_write_settings_behind_a_comment(file):
    text = json.dumps({"A-v0": {"n_timesteps": 2000, "x\nbackend": 1, "callback": "y\x85z: 1"}})

    lines = zoo.read(file("dqn.yml", text), "A-v0").text().splitlines()

    assert [line for line in lines if "backend" in line or "z: 1" in line] == [
        "#   x backend: 1 is left out: nothing here does that",
        "#   callback: y z: 1 is left out: nothing here does that",
    ]


def test_the_command_writes_a_scenario_and_tells_what_is_lost(dqn, tmp_path, capsys):
    out = tmp_path / "new" / "acrobot.yaml"

    code = main(["import", str(dqn), "--env", "Acrobot-v0", "--out", str(out), "--json"])
    said = capsys.readouterr()
    answer = json.loads(said.out.splitlines()[-1])

    assert code == 0
    assert load(out).env.id == "Acrobot-v0"
    assert answer["out"] == str(out)
    assert answer["settings"]["actor"]["envs"] == 2
    assert [f"rookery: warning: {note}" for note in answer["notes"]] == said.err.splitlines()


def test_the_command_prints_the_scenario_where_no_file_is_named(dqn, tmp_path, capsys):
    assert main(["import", str(dqn), "--env", "CartPole-v1"]) == 0

    path = tmp_path / "piped.yaml"
    path.write_text(capsys.readouterr().out)
    assert load(path).replay.batch == 128


def test_the_command_leaves_a_file_that_is_there_alone(dqn, tmp_path, capsys):
    out = tmp_path / "mine.yaml"
    out.write_text("precious")

    code = main(["import", str(dqn), "--env", "CartPole-v1", "--out", str(out)])

    assert code == 2
    assert out.read_text() == "precious"
    assert "choose another file with --out" in capsys.readouterr().err
