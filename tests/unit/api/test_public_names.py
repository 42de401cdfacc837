"""What others may rely on: the public names, what they cost to import, and complete tables."""

import subprocess
import sys
from importlib import import_module

import pytest
from beartype.roar import BeartypeCallHintViolation

import rookery
from rookery.config.algorithms import ALGORITHMS, load_class
from rookery.config.schema import Activation, Draw, Mode, Optimizer
from rookery.errors import ConfigError
from rookery.learner.learner import OPTIMIZERS
from rookery.networks.encoders import ENCODERS
from rookery.networks.mlp import ACTIVATIONS
from rookery.replay.sampler import SAMPLERS
from rookery.schedule import SHAPES, Decay
from rookery.training import LOOPS
from rookery.types import LeafKind

PUBLIC = {
    "A2C",
    "DDPG",
    "DQN",
    "IMPALA",
    "PPO",
    "R2D2",
    "SAC",
    "TD3",
    "TQC",
    "Agent",
    "Actor",
    "Ask",
    "AsyncAgent",
    "AsyncMainLoop",
    "Config",
    "DistributedAgent",
    "DistributedEnvironment",
    "DistributedMainLoop",
    "DistributedReplayBuffer",
    "DqnAgent",
    "FederatedParameterServer",
    "InferencePolicy",
    "Learner",
    "Limiter",
    "LocalReplay",
    "MainLoop",
    "MultiAgentLearner",
    "ParameterServer",
    "Policy",
    "PrioritizedDQN",
    "PrioritizedDistributedReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedSAC",
    "PrioritizedTD3",
    "Registry",
    "RemoteParameterServer",
    "ReplayBuffer",
    "ReplayBufferPool",
    "RookeryError",
    "Run",
    "Trajectory",
    "WeightStore",
    "__version__",
    "create_distributed_registry",
    "events",
    "load",
    "rollout_worker",
    "train",
    "train_dqn",
}


def test_the_public_names_are_the_ones_we_mean():
    assert set(rookery.__all__) == PUBLIC
    assert dir(rookery) == sorted(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_a_public_name_is_the_one_of_its_home(name):
    found = getattr(rookery, name)

    assert found is getattr(import_module(found.__module__), name)
    assert found.__doc__


def test_a_name_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(AttributeError, match=r"'trian'.*'train'"):
        _ = rookery.trian


def test_importing_rookery_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import rookery; dir(rookery);"
    code += "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    imported = set(done.stdout.split())
    assert imported - sys.stdlib_module_names == {"rookery"}, done.stderr


def test_a_name_whose_extra_is_missing_says_what_to_install():
    code = "import sys; sys.modules['stable_baselines3'] = None; import rookery;"
    code += "rookery.DistributedReplayBuffer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert "ImportError: rookery.DistributedReplayBuffer needs stable_baselines3" in done.stderr
    assert "pip install 'rookery[sb3]'" in done.stderr


def test_the_remote_server_without_its_extra_says_what_to_install():
    code = "import sys; sys.modules['httpx'] = None; import rookery;"
    code += "rookery.RemoteParameterServer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert "needs httpx, which is not installed" in done.stderr
    assert "pip install 'rookery[server]'" in done.stderr


@pytest.mark.parametrize(
    "call",
    [
        rookery.train,
        rookery.load,
        lambda source: next(rookery.events(source)),
        rookery.train_dqn,
        rookery.rollout_worker,
        rookery.DqnAgent.open,
        rookery.InferencePolicy.of,
    ],
)
def test_the_front_door_refuses_arguments_of_a_wrong_type(call):
    with pytest.raises(BeartypeCallHintViolation):
        call(3.5)


@pytest.mark.parametrize("call", [rookery.train, lambda *a, **k: next(rookery.events(*a, **k))])
def test_a_run_folder_without_a_name_is_refused(call):
    with pytest.raises(ConfigError, match=r"run\.run_dir must name a folder"):
        call("corridor", run_dir="")


@pytest.mark.parametrize(
    ("table", "members"),
    [
        (LOOPS, Mode),
        (SAMPLERS, Draw),
        (OPTIMIZERS, Optimizer),
        (SHAPES, Decay),
        (ACTIVATIONS, Activation),
        (ENCODERS, set(LeafKind) - {LeafKind.MASK}),  # which no network sees
    ],
    ids=lambda side: getattr(side, "__name__", ""),
)
def test_every_choice_has_its_row(table, members):
    assert set(table) == set(members)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_core_is_where_its_row_says(name):
    entry = ALGORITHMS[name]

    assert entry.settings.name == name
    assert load_class(entry.where).__module__.startswith("rookery.algorithms.")
    assert entry.about
