"""The interface of opponents in self-play.

Opponents play the seats (players) that the run's own policy does not play. A plugin provides an
`OpponentsBuilder`, which builds the objects of each process:

    learner process        `Opponents`: keeps weight snapshots and game results, selects opponents
    actor process          `OpponentSeats`: plays the other seats of an actor's games
    evaluation process     opponents in evaluation games, and a `Rater`, which computes Elo
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rookery import plugins
from rookery.config.schema import Config
from rookery.envs.make import Factory
from rookery.envs.turn_based.tables import Tables
from rookery.envs.vector import Envs
from rookery.errors import ConfigError
from rookery.types import Array


class Opponents(Protocol):
    """Interface of the opponent pool of self-play, in the learner process.

    Stores snapshots of the learner's weights as opponents, counts the results of games against all
    opponents, and selects the opponents of the next games.
    """

    @property
    def for_actors(self) -> Any:
        """Picklable data that actor processes pass to `OpponentsBuilder.seat`."""

    def due(self, learner_steps: int) -> bool:
        """Returns whether a weight snapshot must be stored as an opponent at this learner step."""

    def keep(
        self, version: int, weights: Mapping[str, Array], *, learner_steps: int, env_steps: int
    ) -> None:
        """Stores a snapshot of the learner's weights, published as `version`, as a new opponent."""

    def record(self, who: int, points: float) -> None:
        """Records the result of a finished game of the run's policy against the opponent `who`.

        `who` is a member of `Who`, or a number above 0 for a weight snapshot. `points` is 1 if the
        run's policy won, 0.5 for a draw, 0 if it lost.
        """

    def announcement(self) -> dict[str, Array]:
        """Returns the opponents of the next games and their probabilities, as named arrays.

        The learner process publishes them to actors together with the weights. The arrays have the
        same shapes during the whole run.
        """

    def stats(self) -> dict[str, float]:
        """Returns metrics of self-play by name, such as win rates, for the run's log."""

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Returns the opponents' state for a checkpoint: JSON-ready numbers, and arrays by name."""

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Restores the opponents' state from a checkpoint, as `state` returned it."""


class OpponentSeats(Protocol):
    """Interface of the self-play opponents in an actor process.

    They play the seats (players) of the actor's games that the run's policy does not play.
    """

    epsilon: float  # of the actor
    heard: dict[str, Array]  # the latest announcement of the learner

    def hear(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Reads the opponents and their probabilities from arrays that the learner published.

        `arrays` holds them (see `Opponents.announcement`) together with new network weights.
        Returns the weights only.
        """


class Rater(Protocol):
    """Interface for rating network weights by Elo, in the evaluation process."""

    def figures(self, arrays: Mapping[str, Array], *, games: int, seed: int) -> dict[str, float]:
        """Rates the network weights `arrays` by games against players of known strength.

        `games` is the number of games against each of them. Returns metrics by name, such as Elo.
        """


class OpponentsBuilder(Protocol):
    """Interface of a plugin's builder of self-play opponents, for runs with `selfplay.opponents`.

    `latest` is the `Algorithm` with the run's newest weights in the same process.
    """

    def opponents(self, config: Config, run_dir: Path) -> Opponents:
        """Builds the learner process's opponent pool; it stores weight snapshots in `run_dir`."""

    def blank(self, config: Config) -> dict[str, Array]:
        """Returns arrays with the names and shapes of `Opponents.announcement`.

        An actor process needs them to read the memory in which the learner process publishes
        weights and opponents. All opponents have probability 0 in them.
        """

    def seat(self, config: Config, envs: Envs, for_actors: Any, latest: Any) -> OpponentSeats:
        """Builds the opponents of one actor process and lets them play in its games `envs`.

        Must be called before the first reset of `envs`.
        """

    def seat_evaluation(self, config: Config, envs: Envs, latest: Any) -> None:
        """Lets opponents play in the games `envs` of an evaluation.

        Must be called before the first reset of `envs`.
        """

    def rater(self, config: Config, factory: Factory | None, seats: int) -> Rater | None:
        """Builds the object that rates weights by Elo, in the evaluation process.

        Returns None if games with this number of seats (players) cannot be rated.
        """


def opponents_builder(config: Config) -> OpponentsBuilder | None:
    """Returns the builder of a run's self-play opponents, or None for a run without opponents.

    Raises `ConfigError` if the run has opponents, but no installed plugin provides them.
    """
    if not config.selfplay.on:
        return None
    for name in plugins.each("opponents"):
        found: OpponentsBuilder = plugins.load(name)
        return found
    raise ConfigError(
        f"selfplay.opponents is {config.selfplay.opponents}, and no installed plugin provides "
        "opponents; leave it out to play all seats, or install Rookery with its package "
        "`selfplay`"
    )


def tables_of(envs: Envs) -> Tables:
    """Returns the vector of parallel games inside `envs`.

    Raises `ConfigError` if `envs` is a single-agent environment.
    """
    if envs.tables is None:
        games = [name.replace("_", "-") for name in plugins.names("games")]
        named = f"{', '.join(games)}, or " if games else ""
        raise ConfigError(
            f"selfplay.opponents needs a game with several seats, but {envs.name} is an "
            f"environment for one agent; name a game ({named}a PettingZoo environment as "
            "module:env) in env.id, or leave selfplay.opponents out"
        )
    return envs.tables
