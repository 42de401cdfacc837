"""Self-play opponents in an actor process: they act for the players that the policy does not play.

A seat is the position of a player in a game. The learner process publishes the probabilities of
opponents with the weights. An actor process samples an opponent for each game. It loads a weight
snapshot (past policy) when it is first needed, and keeps recently used ones in memory.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rookery import plugins
from rookery.actors.policy import InferencePolicy, Recipe
from rookery.algorithms import Algorithm
from rookery.config.schema import Config, Pick
from rookery.envs.lookup import load
from rookery.envs.make import Envs
from rookery.envs.nested import part
from rookery.envs.turn_based.game import Player, Who
from rookery.errors import ConfigError
from rookery.selfplay.match import RandomPlayer
from rookery.selfplay.opponents import ODDS, WHO
from rookery.selfplay.snapshot_files import SnapshotStore
from rookery.types import Array, Obs, Rows

CACHE = 2  # policies kept in memory for each possible opponent


class SeatedOpponents:
    """Self-play opponents in the games of one actor process: random, scripted and past policies.

    Implements `OpponentSeats`, the interface through which an actor's games ask opponents to act.
    """

    def __init__(self, config: Config, envs: Envs, store: SnapshotStore | None, latest: Algorithm):
        self._config, self._codec, self._store, self._latest = config, envs.codec, store, latest
        self._spec = envs.spec
        self.hear({WHO: np.array([Who.RANDOM]), ODDS: np.ones(1)})
        self._policies: dict[int, InferencePolicy] = {}
        self.epsilon = 0.0  # of the actor
        self._fixed: dict[int, Player] = {
            Who.RANDOM: RandomPlayer(envs.codec.action_space),
            Who.SCRIPTED: scripted(config, envs),
        }

    def hear(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Sets the opponents and their probabilities, which the learner publishes with the weights.

        Returns the other published arrays, such as the weights.
        """
        self.heard = {WHO: arrays[WHO], ODDS: arrays[ODDS]}
        some = arrays[ODDS] > 0
        self._who, below = arrays[WHO][some], arrays[ODDS][some].cumsum()
        self._below = below / below[-1]  # cumulative probabilities
        return {name: array for name, array in arrays.items() if name not in (WHO, ODDS)}

    def invite(self, count: int, rng: np.random.Generator) -> Array:
        """Samples an opponent for each of the next `count` games; returns the opponents' ids.

        The probabilities are those that the learner published last.
        """
        chosen: Array = self._who[self._below.searchsorted(rng.random(count), side="right")]
        return chosen

    def act(self, who: Rows, obs: Any, rng: np.random.Generator) -> Array:
        """Returns K actions for K observations; `who`, [K], has the id of the opponent for each.

        `who` is sorted, so that each opponent acts once, on all its observations. Learned opponents
        have the largest ids and come last. Their observations are first converted to the form
        that the replay buffer stores.
        """
        learned = int(np.searchsorted(who, Who.LATEST))
        stored = self._codec.encode(part(obs, slice(learned, None)), len(who) - learned)
        chosen: list[Array] = []
        for one, first, last in _groups(who):
            if first < learned:
                chosen.append(self._fixed[one].act(part(obs, slice(first, last)), rng))
            else:
                seen = part(stored, slice(first - learned, last - learned))
                chosen.append(self._choose(self._algorithm(one), seen, rng))
        return np.concatenate(chosen)

    def _algorithm(self, who: int) -> Algorithm:
        return self._latest if who == Who.LATEST else self._policy(who).algorithm

    def _choose(self, algorithm: Algorithm, stored: Obs, rng: np.random.Generator) -> Array:
        slips = self._config.selfplay.slips * self.epsilon
        action = algorithm.act(stored, rng, epsilon=slips, noise=False).action
        return self._codec.decode_action(action)

    def _policy(self, who: int) -> InferencePolicy:
        found = self._policies.pop(who, None) or self._loaded(who)
        self._policies[who] = found  # the most recently used policy is the last
        while len(self._policies) > CACHE * max(1, len(self._who)):
            del self._policies[next(iter(self._policies))]
        return found

    def _loaded(self, who: int) -> InferencePolicy:
        assert self._store is not None, "snapshots are announced, but there is no store"
        policy = InferencePolicy(Recipe(self._config), self._spec, self._codec)
        policy.set_weights(self._store.weights(who))
        return policy


def _groups(who: Rows) -> Iterator[tuple[int, int, int]]:
    """Yields (value, start, end) for each range of equal values in a sorted array."""
    ends, first = np.flatnonzero(np.diff(who, append=who[-1:] - 1)), 0
    for one, last in zip(who[ends].tolist(), (ends + 1).tolist(), strict=True):
        yield one, first, last
        first = last


def scripted(config: Config, envs: Envs) -> Player:
    """Returns the scripted player of a run's game, or a random player if the game has none.

    Raises `ConfigError` if the game has none and `selfplay.opponents` asks for one.
    """
    tables, own, known = envs.tables, config.selfplay.scripted, plugins.names("scripted_players")
    if own is not None:
        player: Player = load(own, "selfplay.scripted")()
        return player
    name = tables.games.name if tables is not None else ""
    if name in known:
        written: Player = plugins.load(known[name])()
        return written
    if config.selfplay.opponents.get(Pick.SCRIPTED, 0.0) > 0:
        raise ConfigError(
            f"selfplay.opponents has scripted, but {envs.name} has no scripted player; there are "
            f"some for {', '.join(known)}; name one of yours in selfplay.scripted"
        )
    return RandomPlayer(envs.codec.action_space)
