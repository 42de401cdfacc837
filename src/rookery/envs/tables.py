"""Tables: games of several seats as a vector of lanes, each of them one seat that we play.

    tables = Tables(games_factory, num)           # all seats are ours
    tables.invite(company)                        # or: one seat of each table is, by turns
    obs, info = tables.reset(seed=3)
    obs, reward, terminated, truncated, info = tables.step(action)

To whoever plays it, a lane is an environment that sometimes rests: only lanes that are `due` act. A
lane's transition is closed (`real`) when its seat is due again, with all that it earned since it
acted, or when its seat's part in the game ends. Then it rests, until no seat of ours plays on and a
new game begins at once: what others would still do in the old one is nobody's experience.

    one seat ours    a lane for each table. The company plays the other seats inside `step`, until
                     our seat is due again; every lane is due and real at every step, unless the
                     company was told to let some wait (`ready`)
    all seats ours   a lane for each seat: lane = table * seats + seat
    both ways        (`both_seats`) a lane for each seat. Against `Who.LATEST` all of them are
                     ours; in other games the lanes of other seats rest

A lane that rests shows what it acted on last, so that whoever looks at it finds a mask that allows
something. Its final observation may be one in which it is not due: where that allows nothing,
everything is taken to be allowed.

`points` and `is_success` of a lane compare what everybody at its table has earned when it ends. If
others play on, they may have more later, which nobody knows then.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs import state as states
from rookery.envs.fault import Fault
from rookery.envs.games.interface import MASK, Games, Who
from rookery.errors import ProtocolError
from rookery.types import Array, Bools, Extra, Rows

OPPONENT = "opponent"
PLAYED = Extra(OPPONENT, dtype="int64", own=True)  # the column that says who a row's opponent was
TRIES = 1_000  # games in a row that may be over before a seat of ours is due
SAVED = ("_turn", "_who", "_ours", "_open", "_earned", "_score", "due")


class Company(Protocol):
    """Those who play the seats that are not ours."""

    def invite(self, count: int, rng: np.random.Generator) -> Rows:
        """Returns [count] who plays each of the next games: a `Who`, or a published version."""

    def act(self, who: Rows, obs: Any, rng: np.random.Generator) -> Array:
        """Returns what each of `who` [K], in ascending order, does about its own of K observations.

        Observations and actions are in the game's own form.
        """


class Strangers:
    """A company in which everybody does anything that is allowed."""

    def __init__(self, action_space: spaces.Space[Any]):
        self._space = action_space

    def invite(self, count: int, rng: np.random.Generator) -> Rows:
        return np.full(count, int(Who.RANDOM))

    def act(self, who: Rows, obs: Any, rng: np.random.Generator) -> Array:
        return any_allowed(self._space, obs, rng)


class Tables(VectorEnv[Any, Any, Any]):
    """E games, and a lane for each seat that may be ours."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - as gymnasium declares it
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "lanes": True,
    }

    def __init__(self, games_factory: Callable[[int], Games], num: int):
        """Lanes are `num`, rounded up to whole tables where every seat has one."""
        self._factory, self._num = games_factory, num
        self.games = games_factory(1)
        self.seats = self.games.seats
        self.single_observation_space = self.games.observation_space
        self.single_action_space = self.games.action_space
        self.company: Company | None = None
        self.opening, self.vary, self._begun = 0, False, False
        self.changed: Callable[[], None] = lambda: None  # called when the number of lanes has
        self._sit(lanes=self.seats)

    def invite(
        self,
        company: Company | None = None,
        *,
        both_seats: bool = False,
        opening: int = 0,
        vary: bool = False,
        ready: float = 1.0,
    ) -> None:
        """Lets others in, before the first `reset`; none: strangers, who play at random.

        `step` returns once a seat of ours is due at this share of the tables, `ready`.

        Every game begins with `opening` random plies of whoever is due; to `vary`: with any number
        of them up to that.
        """
        if self._begun:
            raise ProtocolError("games have begun, and their lanes are known; invite, then reset")
        self.company = company or Strangers(self.single_action_space)
        self.opening, self.vary = opening, vary
        self._sit(lanes=self.seats if both_seats else 1)
        self._may_wait = int((1.0 - ready) * self.games.num)
        self.changed()

    def _sit(self, lanes: int) -> None:
        """Makes as many tables as it takes, each with so many lanes."""
        tables, seats = -(-self._num // lanes), self.seats
        self._may_wait = 0  # tables at which others may be due when `step` returns
        if self.games.num != tables:
            self.games.close()
            self.games = self._factory(tables)
        self.num_envs = tables * lanes
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._table = np.repeat(np.arange(tables), lanes)  # [L]
        self._fixed = np.tile(np.arange(lanes), tables) if lanes == seats else None  # [L] seats
        self._turn = np.zeros(tables, dtype=np.int64)  # [E] the seat that is ours, if one is
        self._who = np.full(tables, int(Who.LATEST))  # [E] who plays the others
        self._ours = np.ones((tables, seats), dtype=np.bool_)  # [E, S]
        self._open = np.zeros((tables, seats), dtype=np.bool_)  # [E, S] acted, and not due since
        self._earned = np.zeros((tables, seats))  # [E, S] since it acted
        self._score = np.zeros((tables, seats))  # [E, S] since its game began
        action = self.single_action_space
        assert action.shape is not None, "the codec knows no other"
        self._choice = np.zeros((tables, seats, *action.shape), dtype=action.dtype)
        self.due: Bools = np.zeros(self.num_envs, dtype=np.bool_)  # [L] who has to act now
        self._obs: Any = None  # [L, ...] what each lane has seen last

    @property
    def seat(self) -> Rows:
        """[L] which seat of its table each lane is, in the present games."""
        return self._turn if self._fixed is None else self._fixed

    @property
    def opponent(self) -> Rows:
        """[L] who plays the other seats in the present games."""
        return self._who[self._table]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._begun = True
        tables = np.arange(self.games.num)
        self._turn = (tables - 1) % self.seats  # the first game moves everybody on by one
        self._begin(tables, self._may_wait)
        self.due = self._due()
        # a lane that rests from the start shows what somebody else of its table sees
        seen = self.games.look(self._table, np.where(self.due, self.seat, self._anybody()))
        self._obs = _mapped(np.array, seen)
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
            info["is_success"] = self._won(table, seat) * ended
            info["points"] = self._points(table, seat) * ended
        if (left := np.flatnonzero(self._left(everywhere))).size:
            self._begin(left, self._may_wait - waiting)
        info["due"] = self.due = self._due()
        now = np.flatnonzero(self.due)
        _put(self._obs, now, self.games.look(table[now], self.seat[now]))
        return self._obs, reward, terminated, truncated, info

    def _choose(self, table: Rows, seat: Rows, action: Array) -> None:
        """Takes in what seats of ours do."""
        self._choice[table, seat] = action
        self._open[table, seat] = True
        self._earned[table, seat] = 0.0

    def _due(self) -> Bools:
        table, seat = self._table, self.seat
        due: Bools = self.games.due[table, seat] & self._ours[table, seat]
        return due

    def _anybody(self) -> Rows:
        """Returns for each lane somebody of its table who is due, one of ours if there is any."""
        ours = self.games.due & self._ours
        due = np.where(ours.any(1, keepdims=True), ours, self.games.due)
        first: Rows = due.argmax(1)[self._table]
        return first

    def _play_on(self, which: Rows, may_wait: int) -> int:
        """Lets the company play until at these tables a seat of ours is due, or all have ended.

        At `may_wait` of them others may still be due: playing on at few tables takes as long as at
        many. Returns at how many they are.
        """
        while (which := which[self._waits(which)]).size > may_wait:
            self._turns(which)
        return which.size

    def _waits(self, which: Rows) -> Bools:
        due = (self.games.due[which] & self._ours[which]).any(1)
        ready: Bools = self._left(which) | due
        return ~ready

    def _left(self, which: Rows) -> Bools:
        """Says at which of these tables no seat of ours plays on."""
        plays = self._ours[which] & ~self.games.ended[which]
        left: Bools = np.count_nonzero(plays, axis=1) == 0
        return left

    def _turns(self, which: Rows) -> None:
        """Plays one turn at each of these tables; ours have chosen, the others are asked."""
        at, seat = np.nonzero(self.games.due[which] & ~self._ours[which])
        if at.size:
            self._ask(which[at], seat)
        self.games.play(which, self._choice[which])
        brought = self.games.reward[which]
        self._earned[which] += brought
        self._score[which] += brought

    def _ask(self, table: Rows, seat: Rows) -> None:
        """Asks the others once, for all the seats where they are due, each one's side by side."""
        assert self.company is not None, "somebody plays the seats that are not ours"
        order = np.argsort(self._who[table], kind="stable")
        table, seat = table[order], seat[order]
        seen = self.games.look(table, seat)
        self._choice[table, seat] = self.company.act(self._who[table], seen, self.np_random)

    def _begin(self, which: Rows, may_wait: int) -> None:
        """Starts new games; one that we have left before a seat of ours is due has not been one."""
        self._turn = self._turn.copy()  # it has been handed out
        self._turn[which] = (self._turn[which] + 1) % self.seats
        if self.company is not None:
            self._who[which] = self.company.invite(which.size, self.np_random)
            self._ours[which] = np.arange(self.seats) == self._turn[which, None]
            if self._fixed is not None:
                self._ours[which] |= (self._who[which] == Who.LATEST)[:, None]
        self._open[which] = False
        for _ in range(TRIES):
            self.games.reset(which, self.np_random)
            self._shuffle(which)
            self._score[which] = 0.0
            may_wait -= self._play_on(which, may_wait)
            which = which[self._left(which)]
            if not which.size:
                return
        raise Fault(
            f"{TRIES} games in a row were over before our seat was due; the rules must let "
            "everybody act; lower the opening, or correct the game",
            int(which[0]),
        )

    def _shuffle(self, which: Rows) -> None:
        """Plays the opening: whoever is due does anything that is allowed."""
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

    def _won(self, table: Rows, seat: Rows) -> Array:
        """Says who has won, as 1: nobody at the table has more, and it is more than nothing."""
        own = self._score[table, seat]
        won: Bools = (own > 0) & (own == self._score[table].max(1))
        return won.astype(np.float64)

    def _points(self, table: Rows, seat: Rows) -> Array:
        """Returns 1 where everybody else at the table has less, 0.5 where the best have as much."""
        own = self._score[table, seat]
        others = self._score[table]
        others[np.arange(len(table)), seat] = -np.inf
        best = others.max(1)
        points: Array = (own > best) + 0.5 * (own == best)
        return points

    def _final(self, lanes: Rows) -> Any:
        """Returns [L] observations, of which those of `lanes` are the last of their games."""
        seen = self.games.look(self._table[lanes], self.seat[lanes])
        if isinstance(seen, Mapping) and MASK in seen:
            stuck = ~np.asarray(seen[MASK]).any(1, keepdims=True)
            seen = {**seen, MASK: np.where(stuck, np.ones_like(seen[MASK]), seen[MASK])}
        final = _mapped(np.array, self._obs)
        _put(final, lanes, seen)
        return final

    def export_state(self) -> dict[str, Any] | None:
        """Returns JSON-ready data to go on from exactly; None where the games cannot."""
        games = self.games.export_state()
        if games is None or self._obs is None:
            return None
        own = {name: states.pack(getattr(self, name)) for name in SAVED}
        return {"games": games, "own": own, "obs": _mapped(states.pack, self._obs)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Goes back to where `export_state` looked, in games that have been reset once."""
        self.games.restore_state(state["games"])
        for name in SAVED:
            setattr(self, name, states.unpack(state["own"][name]))
        _fill(self._obs, state["obs"])

    def close_extras(self, **kwargs: Any) -> None:
        self.games.close()


def any_allowed(space: spaces.Space[Any], obs: Any, rng: np.random.Generator) -> Array:
    """Returns an action for each of K observations, as likely as any other that is allowed."""
    for kind, draw in DRAWS.items():
        if isinstance(space, kind):
            return draw(space, obs, rng)
    raise ProtocolError(f"nobody knows how to draw from {space}; the codec must have refused it")


def _choice(space: spaces.Discrete[Any], obs: Any, rng: np.random.Generator) -> Array:
    drawn = rng.random((count(obs), int(space.n)))
    if isinstance(obs, Mapping) and MASK in obs:
        drawn = np.where(np.asarray(obs[MASK]) > 0, drawn, -1.0)
    chosen: Array = drawn.argmax(1) + space.start
    return chosen


def _choices(space: spaces.MultiDiscrete[Any], obs: Any, rng: np.random.Generator) -> Array:
    return rng.integers(space.start, space.start + space.nvec, (count(obs), *space.shape))


def _switches(space: spaces.MultiBinary, obs: Any, rng: np.random.Generator) -> Array:
    return rng.integers(0, 2, (count(obs), *space.shape), dtype=np.int8)


def _motion(space: spaces.Box, obs: Any, rng: np.random.Generator) -> Array:
    drawn = rng.uniform(space.low, space.high, (count(obs), *space.shape))
    return drawn.astype(space.dtype)


DRAWS: dict[type[spaces.Space[Any]], Callable[[Any, Any, np.random.Generator], Array]] = {
    spaces.Discrete: _choice,
    spaces.MultiDiscrete: _choices,
    spaces.MultiBinary: _switches,
    spaces.Box: _motion,
}


def count(obs: Any) -> int:
    """Returns how many observations a batch has, however nested its dicts are."""
    while isinstance(obs, Mapping):
        obs = next(iter(obs.values()))
    return len(obs)


def part(obs: Any, which: Rows | slice) -> Any:
    """Returns some of a batch of observations."""
    if isinstance(obs, Mapping):
        return {key: part(leaf, which) for key, leaf in obs.items()}
    return obs[which]


def _mapped(change: Callable[[Array], Any], obs: Any) -> Any:
    """Changes every leaf of a batch that may be a dict of batches."""
    if isinstance(obs, Mapping):
        return {key: _mapped(change, part) for key, part in obs.items()}
    return change(obs)


def _put(into: Any, where: Rows, obs: Any) -> None:
    """Writes K observations into a batch, at these places."""
    if isinstance(into, Mapping):
        for key, part in into.items():
            _put(part, where, obs[key])
    else:
        into[where] = obs


def _fill(into: Any, saved: Any) -> None:
    """Writes what was packed leaf by leaf back into a batch."""
    if isinstance(into, Mapping):
        for key, part in into.items():
            _fill(part, saved[key])
    else:
        into[...] = states.unpack(saved)
