"""Path finding in `run.mode device`: builds grid worlds, actors and replay buffers on a GPU."""

import torch

from rookery.actors.device_group import DeviceReplay, OnDevice
from rookery.algorithms import Algorithm
from rookery.config.schema import Config
from rookery.errors import ConfigError
from rookery.pathfinding.curriculum_actors import DeviceActors
from rookery.pathfinding.planner.planner_pool import planner_count
from rookery.pathfinding.settings import TeamConfig
from rookery.pathfinding.team_actor import choose_precision, device_replay_bytes
from rookery.pathfinding.team_dqn import TeamDQN
from rookery.pathfinding.world.curriculum import curriculum_spec
from rookery.pathfinding.world.team_env import Team as TeamEnv


class PathfindingBatchedEnv:
    """Path finding in `run.mode device`: checks the settings; builds actors and replay on a GPU.

    Implements the interface `BatchedEnv`.
    """

    without_gpu = "pathfinding-cpu is a scenario for this machine"

    def refuse(self, config: Config) -> None:
        """Raises ConfigError if team sizes, batch size and device settings contradict each other.

        Every team size must divide `replay.batch_size`. It must be at most `device.agents`, the
        number of agents that play at once (half of that if a planner is imitated). `device.rows`,
        the replay length in steps of each environment, must hold at least one sequence and the
        steps until the next one starts.
        """
        algo = _team_config(config)
        teams, batch = curriculum_spec(algo.curriculum).agents, config.replay.batch_size
        uneven = [agents for agents in teams if batch % agents]
        if uneven:
            raise ConfigError(
                f"a batch holds whole teams, got replay.batch_size {batch} and teams of {uneven}; "
                "choose a batch that every team size of algo.curriculum divides"
            )
        needed = teams[-1] * (2 if algo.taught else 1)
        if needed > config.device.agents:
            raise ConfigError(
                f"device.agents {config.device.agents} is less than a team of {teams[-1]} needs, "
                f"{needed} (twice the team with a teacher, which guides some worlds and not all); "
                "raise it, or leave that team out of algo.curriculum"
            )
        least = algo.sequence + 1 + algo.stride
        if config.device.rows < least:
            raise ConfigError(
                f"device.rows {config.device.rows} are too few for a sequence of "
                f"{algo.sequence + 1} steps that starts every {algo.stride}; keep at least {least}"
            )

    def build(self, config: Config, algorithm: Algorithm, device: torch.device) -> OnDevice:
        choose_precision()
        actors = DeviceActors(
            config, _team_algorithm(algorithm), TeamEnv(**config.env.kwargs).rules, device
        )
        return OnDevice(actors, DeviceReplay(actors))

    def replay_bytes(self, config: Config, algorithm: Algorithm, device: torch.device) -> int:
        return _team_config(config).teams * device_replay_bytes(
            _team_algorithm(algorithm), config.device, device
        )

    def processes(self, config: Config) -> int:
        return planner_count() if _team_config(config).taught else 0


def _team_config(config: Config) -> TeamConfig:
    assert isinstance(config.algo, TeamConfig)
    return config.algo


def _team_algorithm(algorithm: Algorithm) -> TeamDQN:
    assert isinstance(algorithm, TeamDQN)
    return algorithm


BATCHED_ENV = PathfindingBatchedEnv()
