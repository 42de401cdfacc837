"""Plugin of multi-agent path finding: command, algorithm and ready-made training settings."""

from rookery.plugins import AlgorithmNames, Plugin, Verb

PLUGIN = Plugin(
    verbs={
        "pathfinding": Verb(
            "rookery.pathfinding.verb", "evaluate and draw policies for many agents on a grid"
        ),
    },
    algorithms={
        "team": AlgorithmNames(
            settings="rookery.pathfinding.settings:TeamConfig",
            algorithm="rookery.pathfinding.team_dqn:TeamDQN",
            about="recurrent DQN for a team of agents that communicate; for pathfinding",
            batched_env="rookery.pathfinding.batched_env:BATCHED_ENV",
        ),
    },
    scenarios="rookery.pathfinding.scenarios",
)
