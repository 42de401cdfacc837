"""Parallel multi-player games as one vector environment, in which each slot is one player.

    tables = Tables(games_factory, num)           # the run's policy plays all seats
    tables.invite(opponents)                      # or one seat of each game, in rotation
    obs, info = tables.reset(seed=3)
    obs, reward, terminated, truncated, info = tables.step(action)

A table is one of the parallel games. A seat is a player of a game; an own seat is one that the
run's policy plays. An environment slot of the vector (a lane) stands for one seat. Only slots whose
seat is to move (`due`) act; the actions of all other slots are ignored.

A slot's transition is complete (`real`) when its seat is to move again, or when the game ends for
its seat; its reward is the sum of rewards since the slot's action. When the game has ended for its
seat, a slot does not act until the game has ended for all own seats. Then a new game begins at
once, even if opponents could still play on in the old game.

    one own seat     one slot for each game. Opponents play the other seats inside `step`, until the
                     own seat is to move again; every slot is due and real at every step, unless
                     `ready` lets `step` return earlier
    all seats own    one slot for each seat: slot = game * seats + seat
    both             (`both_seats`) one slot for each seat. In games against the run's own newest
                     weights (`Who.LATEST`) all seats are own seats; in games against other
                     opponents the slots of the opponents' seats do not act

A slot that does not act keeps the observation of its last action, whose mask allows some action. If
the mask of a final observation is all zeros, since the seat is not to move, it is replaced by ones.

When the game ends for a slot's seat, the info entries `points` and `is_success` compare the sums of
rewards of all seats. Rewards that other seats earn later in the same game do not count.
"""

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs import env_state as states
from rookery.envs.env_fault import Fault
from rookery.envs.nested import count, mapped, put
from rookery.envs.turn_based.game import MASK, Games, Who
from rookery.errors import ProtocolError
from rookery.types import Array, Bools, Extra, Rows

OPPONENT = "opponent"
PLAYED = Extra(OPPONENT, dtype="int64", own=True)  # extra column: the opponent of a row
TRIES = 1_000  # games in a row that may end before an own seat is due
SAVED = ("_turn", "_who", "_ours", "_open", "_earned", "_score", "due")


class TableOpponents(Protocol):
    """Interface of the opponents in a `Tables`, a vector of parallel multi-player games.

    They play the seats (players) that the run's policy does not play.
    """

    def invite(self, count: int, rng: np.random.Generator) -> Rows:
        """Selects an opponent for each of `count` new games; returns their codes [count].

        A code is a member of `Who`, or a number above 0 that stands for a weight snapshot, such as
        an earlier policy of the run.
        """

    def act(self, who: Rows, obs: Any, rng: np.random.Generator) -> Array:
        """Returns the actions of opponents: opponent `who[k]` acts on the k-th observation.

        `who` are sorted codes of opponents (see `invite`). Observations and actions are elements of
        the game's spaces, not converted for replay.
        """


class RandomOpponents:
    """Opponents that play uniformly random allowed actions."""

    def __init__(self, action_space: spaces.Space[Any]):
        self._space = action_space

    def invite(self, count: int, rng: np.random.Generator) -> Rows:
        return np.full(count, int(Who.RANDOM))

    def act(self, who: Rows, obs: Any, rng: np.random.Generator) -> Array:
        return any_allowed(self._space, obs, rng)


class Tables(VectorEnv[Any, Any, Any]):
    """Vector environment of parallel multi-player games.

    Each environment of the vector (a slot, or lane) stands for one seat (player) of a game.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as gymnasium declares it
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "lanes": True,
    }

    def __init__(self, games_factory: Callable[[int], Games], num: int):
        """Makes a vector with `num` environments, each of which stands for one player of a game.

        If every player of a game is an environment, `num` is rounded up to whole games.
        """
        self._factory, self._num = games_factory, num
        self.games = games_factory(1)
        self.seats = self.games.seats
        self.single_observation_space = self.games.observation_space
        self.single_action_space = self.games.action_space
        self.opponents: TableOpponents | None = None
        self.opening, self.vary, self._begun = 0, False, False
        self.changed: Callable[[], None] = lambda: None  # called when the number of lanes changes
        self._sit(lanes=self.seats)

    def invite(
        self,
        opponents: TableOpponents | None = None,
        *,
        both_seats: bool = False,
        opening: int = 0,
        vary: bool = False,
        ready: float = 1.0,
    ) -> None:
        """Sets the opponents of the run's policy; must be called before the first `reset`.

        If `opponents` is None, they play random allowed actions. With `both_seats`, every seat
        (player) of a game is an environment of the vector; without, only the seat of the run's
        policy is.

        `step` returns once the run's policy is to move in a fraction `ready` of the games. Every
        game begins with `opening` random moves, or with `vary` with a random number of them, from 0
        to `opening`.
        """
        if self._begun:
            raise ProtocolError("opponents must be set before the first reset; call invite first")
        self.opponents = opponents or RandomOpponents(self.single_action_space)
        self.opening, self.vary = opening, vary
        self._sit(lanes=self.seats if both_seats else 1)
        self._may_wait = int((1.0 - ready) * self.games.num)
        self.changed()

    def _sit(self, lanes: int) -> None:
        """Makes the parallel games and their arrays.

        `lanes` is the number of environments of the vector for each game: 1 or one per player.
        """
        tables, seats = -(-self._num // lanes), self.seats
        self._may_wait = 0  # tables at which opponents may be due when `step` returns
        if self.games.num != tables:
            self.games.close()
            self.games = self._factory(tables)
        self.num_envs = tables * lanes
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._table = np.repeat(np.arange(tables), lanes)  # [L]
        self._fixed = np.tile(np.arange(lanes), tables) if lanes == seats else None  # [L] seats
        self._turn = np.zeros(tables, dtype=np.int64)  # [E] the own seat, where there is one
        self._who = np.full(tables, int(Who.LATEST))  # [E] the opponent
        self._ours = np.ones((tables, seats), dtype=np.bool_)  # [E, S]
        self._open = np.zeros_like(self._ours)  # [E, S] has acted and was not due since
        self._earned = np.zeros((tables, seats))  # [E, S] rewards since its action
        self._score = np.zeros((tables, seats))  # [E, S] rewards since the game began
        action = self.single_action_space
        assert action.shape is not None, "SpaceCodec supports no other space"
        self._choice = np.zeros((tables, seats, *action.shape), dtype=action.dtype)
        self.due: Bools = np.zeros(self.num_envs, dtype=np.bool_)  # [L] lanes that must act now
        self._obs: Any = None  # [L, ...] the last observation of each lane

    @property
    def seat(self) -> Rows:
        """Array [L]: for each of the vector's L environments, the player (seat) it stands for."""
        return self._turn if self._fixed is None else self._fixed

    @property
    def opponent(self) -> Rows:
        """Array [L]: for each of the vector's L environments, the opponent in its present game.

        It is a member of `Who`, or a number above 0 that stands for a weight snapshot.
        """
        return self._who[self._table]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._begun = True
        tables = np.arange(self.games.num)
        self._turn = (tables - 1) % self.seats  # the first game advances it by one
        self._begin(tables, self._may_wait)
        self.due = self._due()
        # a slot that does not act at first shows the observation of another seat of its game
        seen = self.games.look(self._table, np.where(self.due, self.seat, self._any_due_seat()))
        self._obs = mapped(np.array, seen)
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Array, Bools, Bools, dict[str, Any]]:
        table, seat, acted = self._table, self.seat, self.due
        self._choose(table[acted], seat[acted], np.asarray(actions)[acted])
        everywhere = np.arange(self.games.num)
        self._turns(everywhere)
        waiting = self._play_on(everywhere, self._may_wait)

        ended = self.games.ended[table, seat]
        real = self._open[table, seat] & (ended | self.games.due[table, seat])
        reward = self._earned[table, seat] * real
        ended &= real
        truncated = ended & self.games.truncated[table, seat]
        terminated = ended & ~truncated
        info: dict[str, Any] = {"real": real, "rested": ~acted}
        info |= {OPPONENT: self.opponent, "seat": seat.astype(np.int8)}  # of games that may be over
        self._open[table[real], seat[real]] = False
        if np.count_nonzero(ended):
            info["final_obs"] = self._final(np.flatnonzero(ended))
            info |= {name: part * ended for name, part in self._results(table, seat).items()}
        if (left := np.flatnonzero(self._left(everywhere))).size:
            self._begin(left, self._may_wait - waiting)
        info["due"] = self.due = self._due()
        now = np.flatnonzero(self.due)
        put(self._obs, now, self.games.look(table[now], self.seat[now]))
        return self._obs, reward, terminated, truncated, info

    def _choose(self, table: Rows, seat: Rows, action: Array) -> None:
        """Stores the policy's actions: the k-th for player (seat) `seat[k]` in game `table[k]`.

        Each action starts a transition, whose reward is summed from 0.
        """
        self._choice[table, seat] = action
        self._open[table, seat] = True
        self._earned[table, seat] = 0.0

    def _due(self) -> Bools:
        table, seat = self._table, self.seat
        due: Bools = self.games.due[table, seat] & self._ours[table, seat]
        return due

    def _any_due_seat(self) -> Rows:
        """Returns, for each environment of the vector, a player (seat) of its game that is to move.

        Players that the run's policy plays are preferred.
        """
        own = self.games.due & self._ours
        due = np.where(own.any(1, keepdims=True), own, self.games.due)
        first: Rows = due.argmax(1)[self._table]
        return first

    def _play_on(self, which: Rows, may_wait: int) -> int:
        """Lets opponents move in games `which` until the run's policy is to move or has finished.

        `which` are indices of the parallel games. Stops early when at most `may_wait` games are
        left in which an opponent is to move, since moving in a few games takes as long as in many.
        Returns the number of games left.
        """
        while (which := which[self._waits(which)]).size > may_wait:
            self._turns(which)
        return which.size

    def _waits(self, which: Rows) -> Bools:
        due = (self.games.due[which] & self._ours[which]).any(1)
        ready: Bools = self._left(which) | due
        return ~ready

    def _left(self, which: Rows) -> Bools:
        """Returns for each game in `which` whether it has ended for the run's policy.

        That is so if the game has ended for all seats (players) that the policy plays.
        """
        plays = self._ours[which] & ~self.games.ended[which]
        left: Bools = np.count_nonzero(plays, axis=1) == 0
        return left

    def _turns(self, which: Rows) -> None:
        """Plays one move in each of the games `which` and adds up the rewards.

        Opponents choose the actions of their seats (players); the actions of the run's policy were
        stored before, by `_choose`.
        """
        at, seat = np.nonzero(self.games.due[which] & ~self._ours[which])
        if at.size:
            self._ask_opponents(which[at], seat)
        self.games.play(which, self._choice[which])
        brought = self.games.reward[which]
        self._earned[which] += brought
        self._score[which] += brought

    def _ask_opponents(self, table: Rows, seat: Rows) -> None:
        """Stores opponents' actions: the k-th for player (seat) `seat[k]` in game `table[k]`.

        Calls the opponents' `act` once, with the observations sorted by opponent.
        """
        assert self.opponents is not None, "seats that are not own have opponents"
        order = np.argsort(self._who[table], kind="stable")
        table, seat = table[order], seat[order]
        seen = self.games.look(table, seat)
        self._choice[table, seat] = self.opponents.act(self._who[table], seen, self.np_random)

    def _begin(self, which: Rows, may_wait: int) -> None:
        """Starts new games `which`, and lets opponents move until the run's policy is to move.

        At most `may_wait` games may be left in which an opponent is still to move. A game that ends
        before the policy's first move is started again; raises `Fault` if that happens too often.
        """
        self._turn = self._turn.copy()  # callers may keep the old array
        self._turn[which] = (self._turn[which] + 1) % self.seats
        if self.opponents is not None:
            self._who[which] = self.opponents.invite(which.size, self.np_random)
            self._ours[which] = np.arange(self.seats) == self._turn[which, None]
            if self._fixed is not None:
                self._ours[which] |= (self._who[which] == Who.LATEST)[:, None]
        self._open[which] = False
        for _ in range(TRIES):
            self.games.reset(which, self.np_random)
            self._play_opening(which)
            self._score[which] = 0.0
            may_wait -= self._play_on(which, may_wait)
            which = which[self._left(which)]
            if not which.size:
                return
        raise Fault(
            f"{TRIES} games in a row were over before an own seat was due; the rules must let "
            "every seat act; lower the opening, or correct the game",
            int(which[0]),
        )

    def _play_opening(self, which: Rows) -> None:
        """Plays the opening (first moves) of the new games `which` with random allowed actions."""
        plies = np.full(which.size, self.opening)
        if self.vary and self.opening:
            plies = self.np_random.integers(self.opening + 1, size=which.size)
        for ply in range(self.opening):
            on = ~self.games.over[which] & (plies > ply)
            which, plies = which[on], plies[on]
            if not which.size:
                return
            at, seat = np.nonzero(self.games.due[which])
            seen = self.games.look(which[at], seat)
            choice = any_allowed(self.single_action_space, seen, self.np_random)
            self._choice[which[at], seat] = choice
            self.games.play(which, self._choice[which])

    def _results(self, table: Rows, seat: Rows) -> dict[str, Array]:
        """Returns the results of player (seat) `seat[k]` in game `table[k]`, for each k.

        The seat's sum of rewards is compared with the largest sum of another seat of the game.
        `points` is 1 if it is larger, 0.5 if it is equal, 0 if it is smaller. `is_success` is 1 if
        it is positive and not smaller, else 0.
        """
        own, others = self._score[table, seat], self._score[table]
        others[np.arange(len(table)), seat] = -np.inf
        best = others.max(1)
        won = (own > 0) & (own >= best)
        return {"is_success": won * 1.0, "points": (own > best) + 0.5 * (own == best)}

    def _final(self, lanes: Rows) -> Any:
        """Returns a batch of observations with the final ones of the environments `lanes`.

        Each environment of the vector (lane) stands for one player; for the players of `lanes` the
        game has just ended. All others have their latest observation in the batch.
        """
        seen = self.games.look(self._table[lanes], self.seat[lanes])
        if isinstance(seen, Mapping) and MASK in seen:
            stuck = ~np.asarray(seen[MASK]).any(1, keepdims=True)
            seen = {**seen, MASK: np.where(stuck, np.ones_like(seen[MASK]), seen[MASK])}
        final = mapped(np.array, self._obs)
        put(final, lanes, seen)
        return final

    def export_state(self) -> dict[str, Any] | None:
        """Returns the exact state of the parallel games as JSON.

        Returns None before the first reset, or if the games cannot be saved.
        """
        games = self.games.export_state()
        if games is None or self._obs is None:
            return None
        own = {name: states.pack(getattr(self, name)) for name in SAVED}
        return {"games": games, "own": own, "obs": mapped(states.pack, self._obs)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Restores a state of the games from `export_state`; needs an earlier call of `reset`."""

        def write(leaf: Array, saved: Any) -> None:
            leaf[...] = states.unpack(saved)

        self.games.restore_state(state["games"])
        for name in SAVED:
            setattr(self, name, states.unpack(state["own"][name]))
        mapped(write, self._obs, state["obs"])

    def close_extras(self, **kwargs: Any) -> None:
        self.games.close()


@singledispatch
def any_allowed(space: Any, obs: Any, rng: np.random.Generator) -> Array:
    """Samples a uniformly random allowed action for each observation of a batch.

    Action masks are read from the observations; without masks every action is allowed.
    """
    raise ProtocolError(f"{space} cannot be sampled; SpaceCodec must have refused it")


@any_allowed.register(spaces.Discrete)
def _choice(space: spaces.Discrete[Any], obs: Any, rng: np.random.Generator) -> Array:
    drawn = rng.random((count(obs), int(space.n)))
    if isinstance(obs, Mapping) and MASK in obs:
        drawn = np.where(np.asarray(obs[MASK]) > 0, drawn, -1.0)
    chosen: Array = drawn.argmax(1) + space.start
    return chosen


@any_allowed.register(spaces.MultiDiscrete)
def _choices(space: spaces.MultiDiscrete[Any], obs: Any, rng: np.random.Generator) -> Array:
    return rng.integers(space.start, space.start + space.nvec, (count(obs), *space.shape))


@any_allowed.register(spaces.MultiBinary)
def _switches(space: spaces.MultiBinary, obs: Any, rng: np.random.Generator) -> Array:
    return rng.integers(0, 2, (count(obs), *space.shape), dtype=np.int8)


@any_allowed.register(spaces.Box)
def _motion(space: spaces.Box, obs: Any, rng: np.random.Generator) -> Array:
    drawn = rng.uniform(space.low, space.high, (count(obs), *space.shape))
    return drawn.astype(space.dtype)
