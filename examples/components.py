"""Training put together by hand, in four ways: each learns to walk out of a corridor.

python examples/components.py

An agent, a buffer, an environment and a parameter server are objects; a loop takes them, and any of
them may be one of yours. The best possible return is 0.95.
"""

from rookery import (
    AsyncMainLoop,
    DistributedAgent,
    DistributedEnvironment,
    DistributedMainLoop,
    MainLoop,
    ParameterServer,
    ReplayBufferPool,
)
from rookery.envs.toy.basic import Corridor


def corridor() -> Corridor:
    return Corridor(length=6)


def new_agent(algorithm: str, width: int) -> DistributedAgent:
    settings = {
        "net.hidden": [width],
        "actor.epsilon_steps": 3_000,
        "replay.learning_starts": 200,
        "algo.gamma": 0.9,
    }
    return DistributedAgent(algorithm, update_frequency=1, env=corridor, settings=settings)


def show(way: str, agent: DistributedAgent) -> None:
    print(f"{way:12} {agent.evaluate_policy(10).reward:.2f}", flush=True)


environment = DistributedEnvironment(corridor, num_workers=2)
replay_buffer = ReplayBufferPool(num_buffers=2, buffer_capacity=5_000)

# Centralized Training: parameter server integrated into main loop
agent = new_agent("dqn", 64)
main_loop = MainLoop(environment, replay_buffer, agent, parameter_server=None)
main_loop.run_training(total_episodes=100, evaluation_frequency=20)
show("centralized", agent)

# Distributed Training: separate parameter server for coordination. Without an optimizer of its own
# it takes the agent's
replay_buffer.clear_all_buffers()
agent = new_agent("dqn", 64)
initial_params = agent.get_policy_parameters()
param_server = ParameterServer(initial_params)
main_loop = MainLoop(environment, replay_buffer, agent, param_server)
main_loop.run_training(total_episodes=100, evaluation_frequency=20)
show("distributed", agent)
environment.shutdown()

# Asynchronous Training (A3C-style)
agent = new_agent("a2c", 32)
param_server = ParameterServer(
    agent.get_policy_parameters(), update_frequency=1, optimizer="adam", lr=0.01
)
async_loop = AsyncMainLoop(environment, replay_buffer, agent, param_server, num_workers=8)
async_loop.run_async_training(total_steps=10_000)
show("asynchronous", agent)

# Multi-Machine Training: without an address, on a Ray of its own on this machine
agent = new_agent("dqn", 64)
param_server = ParameterServer(agent.get_policy_parameters(), update_frequency=1, optimizer="adam")
config = {"address": "local", "actors_per_node": 2}
distributed_loop = DistributedMainLoop(
    environment, replay_buffer, agent, param_server,
    node_id="worker_1", cluster_config=config
)  # fmt: skip
distributed_loop.run_distributed_training(150)
show("machines", agent)
