"""The company at the tables: whoever plays the seats that are not ours.

An actor's company hears through the board whom it may meet and how likely, and loads snapshots as
they are met. Those that were asked most recently stay in memory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rookery.algos import Algorithm
from rookery.config.schema import Config, Pick
from rookery.envs.entry import load
from rookery.envs.games.interface import Player, Who
from rookery.envs.make import Envs
from rookery.envs.tables import Tables, part
from rookery.errors import ConfigError
from rookery.loops.rollout import InferencePolicy, Recipe
from rookery.selfplay.gallery import FOLDER, Gallery, claim
from rookery.selfplay.match import Chance
from rookery.selfplay.opponents import ODDS, WHO
from rookery.sharing.files import LEAGUE, make_private
from rookery.types import Array, Obs, Rows

ROOM = 2  # times as many policies as may be met are kept in memory
READY = 0.25  # the share of tables at which an actor has to be due before it goes on


class Company:
    """Random, scripted and learned players, by who they are."""

    def __init__(self, config: Config, envs: Envs, gallery: Gallery | None, latest: Algorithm):
        self._config, self._codec, self._gallery, self._latest = config, envs.codec, gallery, latest
        self._spec = envs.spec
        self.hear({WHO: np.array([Who.RANDOM]), ODDS: np.ones(1)})
        self._policies: dict[int, InferencePolicy] = {}
        self.epsilon = 0.0  # of the actor
        self._fixed: dict[int, Player] = {
            Who.RANDOM: Chance(envs.codec.action_space),
            Who.SCRIPTED: scripted(config, envs),
        }

    def hear(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Takes in who may be met from now on; returns what else was published."""
        self.heard = {WHO: arrays[WHO], ODDS: arrays[ODDS]}
        some = arrays[ODDS] > 0
        self._who, below = arrays[WHO][some], arrays[ODDS][some].cumsum()
        self._below = below / below[-1]  # how likely each is, or one before it
        return {name: array for name, array in arrays.items() if name not in (WHO, ODDS)}

    def invite(self, count: int, rng: np.random.Generator) -> Array:
        """Returns who plays the next games, [count]."""
        chosen: Array = self._who[self._below.searchsorted(rng.random(count), side="right")]
        return chosen

    def act(self, who: Rows, obs: Any, rng: np.random.Generator) -> Array:
        """Returns [K] actions for a batch of observations in the game's own form.

        Everybody is asked once. Those who see what is stored, and not what games show, come last:
        their numbers are the largest.
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
        self._policies[who] = found  # last: the one that was asked most recently
        while len(self._policies) > ROOM * max(1, len(self._who)):
            del self._policies[next(iter(self._policies))]
        return found

    def _loaded(self, who: int) -> InferencePolicy:
        assert self._gallery is not None, "only a run with snapshots announces any"
        policy = InferencePolicy(Recipe(self._config), self._spec, self._codec)
        policy.set_weights(self._gallery.weights(who))
        return policy


def _groups(who: Rows) -> Iterator[tuple[int, int, int]]:
    """Yields everybody in a sorted list, where its places begin, and where they end."""
    ends, first = np.flatnonzero(np.diff(who, append=who[-1:] - 1)), 0
    for one, last in zip(who[ends].tolist(), (ends + 1).tolist(), strict=True):
        yield one, first, last
        first = last


def scripted(config: Config, envs: Envs) -> Player:
    """Returns the scripted player of a game; a random one where nobody wrote any."""
    from rookery.envs.games.scripted import SCRIPTED  # compiled: only where a game is played

    tables, own = envs.tables, config.selfplay.scripted
    if own is not None:
        player: Player = load(own, "selfplay.scripted")()
        return player
    name = tables.games.name if tables is not None else ""
    if name in SCRIPTED:
        return SCRIPTED[name]()
    if config.selfplay.opponents.get(Pick.SCRIPTED, 0.0) > 0:
        raise ConfigError(
            f"selfplay.opponents has scripted, but nobody wrote a player for {envs.name}; there "
            f"are some for {', '.join(SCRIPTED)}; name one of yours in selfplay.scripted"
        )
    return Chance(envs.codec.action_space)


def gallery_of(config: Config, run_dir: Path) -> Gallery:
    """Returns where this run's snapshots are, and those of its league."""
    if not config.selfplay.league:
        return Gallery(run_dir / FOLDER)
    refuse_a_league_of_one(config)
    league = Path(str(config.sharing.pool)).absolute() / LEAGUE
    make_private(league.parent)
    make_private(league)
    tag = claim(league, str(run_dir.absolute()))
    return Gallery(run_dir / FOLDER, league, tag, config.selfplay.part)


def refuse_a_league_of_one(config: Config) -> None:
    if config.selfplay.league and config.sharing.pool is None:
        raise ConfigError(
            f"{config.name} has selfplay.league, in which runs play against each other, and no "
            "sharing.pool to find others in; start several with `rookery share --scenarios league "
            "league-exploiter`, name a folder in sharing.pool, or set selfplay.league=false"
        )


def seat(config: Config, envs: Envs, gallery: Gallery | None, latest: Algorithm) -> Company | None:
    """Fills the other seats of an actor's games; None where there are none to be filled."""
    selfplay = config.selfplay
    if not selfplay.on:
        return None
    tables, company = tables_of(envs), Company(config, envs, gallery, latest)
    tables.invite(
        company,
        both_seats=selfplay.learn_from_both_seats,
        opening=selfplay.opening,
        vary=True,
        ready=READY,
    )
    return company


def seat_judge(config: Config, envs: Envs, latest: Algorithm) -> Envs:
    """Fills the other seats of an evaluator's games, where there are any; returns them."""
    if not config.selfplay.on:
        return envs
    tables, company = tables_of(envs), Company(config, envs, None, latest)
    who = {Pick.RANDOM: Who.RANDOM, Pick.SCRIPTED: Who.SCRIPTED}[config.selfplay.judge]
    company.hear({WHO: np.array([who]), ODDS: np.ones(1)})
    tables.invite(company, opening=config.selfplay.judge_opening)
    return envs


def tables_of(envs: Envs) -> Tables:
    """Returns where games are played; an environment for one is refused."""
    if envs.tables is None:
        raise ConfigError(
            f"selfplay.opponents needs a game with several seats, but {envs.name} is an "
            "environment for one; name a game (ludo, connect-four, tictactoe, or a PettingZoo "
            "environment as module:env) in env.id, or leave selfplay.opponents out"
        )
    return envs.tables
