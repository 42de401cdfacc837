"""The components as they are called: arguments and defaults, checked types, a calling sequence."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest
from beartype.roar import BeartypeCallHintViolation

import rookery
from rookery.envs.toy.basic import Corridor

REQUIRED = inspect.Parameter.empty
PARTS = {"environment": REQUIRED, "replay_buffer": REQUIRED, "agent": REQUIRED}
PARTS |= {"parameter_server": None}
SERVER = {"aggregation_method": "average", "update_frequency": 10, "save_frequency": 100}
SERVER |= {"checkpoint_path": None}

CONSTRUCTORS: dict[str, dict[str, Any]] = {
    "DistributedEnvironment": {
        "env_factory": REQUIRED,
        "num_workers": 4,
        "use_gpu": False,
        "device": None,
    },
    "ReplayBuffer": {"capacity": REQUIRED},
    "PrioritizedReplayBuffer": {
        "capacity": REQUIRED,
        "alpha": 0.6,
        "beta": 0.4,
        "beta_increment": 0.001,
    },
    "ReplayBufferPool": {
        "num_buffers": 4,
        "buffer_capacity": 100_000,
        "use_prioritized": False,
        "save_path": None,
    },
    "DistributedAgent": {
        "algorithm": "dqn",
        "lr": 0.001,
        "batch_size": 32,
        "update_frequency": 4,
        "target_update_frequency": 100,
        "use_gpu": False,
        "device": None,
    },
    "AsyncAgent": {"num_workers": 4},
    "MultiAgentLearner": {"agents": REQUIRED},
    "ParameterServer": {"initial_parameters": REQUIRED, **SERVER},
    "FederatedParameterServer": {
        "initial_parameters": REQUIRED,
        **SERVER,
        "aggregation_method": "federated",
        "min_workers_for_update": 2,
        "differential_privacy": False,
        "noise_scale": 0.1,
    },
    "MainLoop": {**PARTS, "config": None},
    "AsyncMainLoop": {**PARTS, "num_workers": None, "num_async_workers": None},  # 4 of them
    "DistributedMainLoop": {**PARTS, "node_id": "node_0", "cluster_config": None},
}
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "DistributedEnvironment": {
        "generate_experiences": {
            "policy": REQUIRED,
            "num_episodes": REQUIRED,
            "max_steps_per_episode": 1000,
        },
        "generate_batch_experiences": {"policy": REQUIRED, "batch_size": REQUIRED},
        "update_policy": {"params": REQUIRED},
        "reset_environments": {},
        "get_environment_stats": {},
        "shutdown": {},
    },
    "ReplayBuffer": {
        "add": {"experience": REQUIRED},
        "add_batch": {"experiences": REQUIRED},
        "sample": {"batch_size": REQUIRED},
        "clear": {},
        "size": {},
        "is_full": {},
    },
    "PrioritizedReplayBuffer": {
        "add": {"experience": REQUIRED, "priority": 1.0},
        "update_priorities": {"indices": REQUIRED, "priorities": REQUIRED},
    },
    "ReplayBufferPool": {
        "add_experiences": {"experiences": REQUIRED, "buffer_id": None},
        "sample_batch": {"batch_size": REQUIRED, "buffer_id": None},
        "get_buffer_stats": {},
        "clear_all_buffers": {},
        "save_buffers": {"path": None},
        "load_buffers": {"path": None},
        "get_total_experiences": {},
        "balance_buffers": {},
    },
    "DistributedAgent": {
        "learn_from_batch": {"batch": REQUIRED},
        "update_policy": {},
        "get_policy_parameters": {},
        "set_policy_parameters": {"parameters": REQUIRED},
        "compute_gradients": {"batch": REQUIRED},
        "apply_gradients": {"gradients": REQUIRED},
        "evaluate_policy": {"num_episodes": 10},
        "save_checkpoint": {"path": REQUIRED},
        "load_checkpoint": {"path": REQUIRED},
        "get_training_stats": {},
        "reset_training_stats": {},
    },
    "AsyncAgent": {"start_async_training": {}, "stop_async_training": {}},
    "MultiAgentLearner": {
        "train_agents": {"batches": REQUIRED},
        "get_best_agent": {"metric": "reward"},
        "ensemble_predict": {"obs": REQUIRED},
    },
    "ParameterServer": {
        "register_worker": {"worker": REQUIRED},
        "unregister_worker": {"worker": REQUIRED},
        "get_parameters": {},
        "push_gradients": {"worker": REQUIRED, "grads": REQUIRED, "weight": 1.0},
        "aggregate_gradients": {},
        "update_parameters": {"learning_rate": None},  # the optimizer's own: 0.001
        "broadcast_parameters": {},
        "get_server_stats": {},
        "save_checkpoint": {"path": None},
        "load_checkpoint": {"path": None},
        "start_server": {"host": "localhost", "port": 8888},
        "stop_server": {},
    },
    "FederatedParameterServer": {
        "federated_averaging": {},
        "add_differential_privacy_noise": {"arrays": REQUIRED},
        "validate_worker_update": {"worker": REQUIRED, "update": REQUIRED},
    },
    "MainLoop": {
        "run_training": {
            "total_episodes": 1000,
            "max_steps": 1000,
            "evaluation_frequency": 100,
            "checkpoint_frequency": 500,
        },
        "run_single_episode": {"max_steps": 1000},
        "evaluate_policy": {"num_episodes": 10},
        "save_checkpoint": {"path": None},
        "load_checkpoint": {"path": None},
        "get_training_progress": {},
        "stop_training": {},
        "pause_training": {},
        "resume_training": {},
    },
    "AsyncMainLoop": {"run_async_training": {"total_steps": 1_000_000}},
    "DistributedMainLoop": {
        "run_distributed_training": {"total_episodes": 1000},
        "synchronize_with_cluster": {},
    },
}


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.name != "self"}


def public(name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields a component's own methods, its constructor among them."""
    for method, found in vars(getattr(rookery, name)).items():
        function = getattr(found, "__func__", found)  # of a classmethod
        if inspect.isfunction(function) and (method == "__init__" or not method.startswith("_")):
            yield method, function


def telling(hint: Any) -> bool:
    """Is there anything that a value could violate?"""
    return hint is not Any


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_constructor_has_its_arguments_in_order_with_their_defaults(name):
    given, expected = defaults(getattr(rookery, name)), CONSTRUCTORS[name]

    assert {n: given.get(n, "missing") for n in expected} == expected
    assert [n for n in given if n in expected] == list(expected)


@pytest.mark.parametrize("name", METHODS)
def test_its_methods_have_theirs(name):
    found = {m: defaults(getattr(getattr(rookery, name), m)) for m in METHODS[name]}

    for method, expected in METHODS[name].items():
        assert list(found[method].items())[: len(expected)] == list(expected.items()), method
        beyond = list(found[method].items())[len(expected) :]
        assert not [n for n, default in beyond if default is REQUIRED and n != "options"], method


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_every_public_signature_is_checked_and_described(name):
    """Where every hint is Any, there is nothing to check."""
    for method, function in public(name):
        hints = get_type_hints(inspect.unwrap(function))
        checked = "beartype" in function.__code__.co_filename
        assert checked or not any(map(telling, hints.values())), method
        assert method == "__init__" or function.__doc__, method


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_its_description_shows_how_it_is_called(name):
    said = getattr(rookery, name).__doc__

    assert f"= {name}(" in said
    assert any(f".{method}(" in said for method in METHODS[name])


@pytest.mark.parametrize(
    "call",
    [
        lambda: rookery.ReplayBuffer(4, ("obs",)).sample("few"),
        lambda: rookery.ReplayBufferPool.around([]),
        lambda: rookery.ReplayBufferPool(1, 4).sample_batch(2.5),
        lambda: rookery.PrioritizedReplayBuffer(4).add([1], 1.0),
        lambda: rookery.DistributedAgent(env=Corridor).restore([], {}),
        lambda: rookery.MultiAgentLearner([]),
        lambda: rookery.AsyncAgent(env=Corridor, num_workers="all"),
        lambda: rookery.ParameterServer([]),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_by_name(call):
    with pytest.raises(BeartypeCallHintViolation, match="parameter"):
        call()
