"""The four ways to put components together, as their example has them: each of them learns."""

from pathlib import Path

import pytest

from run_processes import CommandForker

EXAMPLE = Path(__file__).parents[2] / "examples" / "components.py"
WAYS = ["centralized", "distributed", "asynchronous", "machines"]
CALLS = [
    "main_loop = MainLoop(environment, replay_buffer, agent, parameter_server=None)",
    "param_server = ParameterServer(initial_params)",
    "main_loop = MainLoop(environment, replay_buffer, agent, param_server)",
    "async_loop = AsyncMainLoop(environment, replay_buffer, agent, param_server, num_workers=8)",
    """distributed_loop = DistributedMainLoop(
    environment, replay_buffer, agent, param_server,
    node_id="worker_1", cluster_config=config
)""",
]


def test_the_example_has_the_four_calls_as_they_are_written():
    places = [EXAMPLE.read_text().find(call) for call in CALLS]

    assert min(places) > 0
    assert places == sorted(places)


@pytest.mark.learning
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_of_the_four_ways_finds_the_way_out(forker: CommandForker, tmp_path: Path) -> None:
    """The best return is 0.95; who walks back and forth is below 0."""
    example = forker.start([], tmp_path, script=EXAMPLE.read_text(), path=EXAMPLE, bare=True)
    ended = example.wait(360.0)

    assert ended == 0, example.said
    found = dict(line.split() for line in example.stdout.read_text().splitlines())
    assert list(found) == WAYS, example.said
    assert {way: reward for way, reward in found.items() if float(reward) < 0.94} == {}
