"""A vector of environments, with observations and actions in the form that replay stores.

    envs = Envs(vector, "CartPole-v1")
    obs = envs.reset(seed=3)
    steps = envs.step(action)      # steps.real: which environments completed a transition
    obs = steps.obs                # to act on next

In a multi-player game, each environment of the vector stands for one player and acts only when that
player is to move; `steps.due` says which environments act next (`turn_based/tables.py`).

All returned values have the shapes and dtypes of the `EnvSpec` and are finite. If an environment
returns anything else, an `EnvError` names the environment, its step and the value.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rookery.config.schema import EnvConfig
from rookery.envs import env_state as states
from rookery.envs.action_masks import refuse_forbidden
from rookery.envs.env_calls import EnvCalls
from rookery.envs.env_fault import ENV_ERRORS, OLD_STEP, STEP_FORM, Fault, named_errors, raised
from rookery.envs.nested import part
from rookery.envs.spaces import SpaceCodec, narrowed
from rookery.envs.step_checks import BOX
from rookery.envs.turn_based.tables import OPPONENT, PLAYED, Tables
from rookery.errors import CheckpointError, ConfigError, EnvError
from rookery.types import Array, Bools, EnvSpec, Floats, Obs, Rows

Vector: TypeAlias = VectorEnv[Any, Any, Any]

STATE_VERSION = 1
INFO_KEYS = ("is_success", "curriculum/agents", "curriculum/size")  # always read from info
GAME_INFO_KEYS = ("is_success", "points", OPPONENT, "seat")


Info: TypeAlias = dict[str, Any]  # what users' environments tell, as Gymnasium has it


class Steps(NamedTuple):
    """The results of one step of E environments; callers may keep the arrays, not change them."""

    obs: Obs  # [E] to act on next; after an episode's end the next one's first, if known
    reward: Floats  # [E] float32, raw; see `learned_reward`
    terminated: Bools  # [E]
    truncated: Bools  # [E]
    final_obs: Obs  # [E] where an episode ended: its last observation; elsewhere undefined
    real: Bools  # [E] False where the environment only reset itself: no row is stored
    info: Info  # the vector's own; see `finished_info`
    due: Bools  # [E] which environments act next; the actions of others are ignored
    # [E] games: slots whose action was ignored. If a slot acted and is not real, the reward of its
    # action is not complete yet
    rested: Bools | None = None
    opponent: Rows | None = None  # [E] games: the opponent of each slot


class _Answer(NamedTuple):
    """What `step` of a Gymnasium vector returned, checked and converted to the stored form."""

    obs: Obs
    reward: Floats
    terminated: Bools
    truncated: Bools
    info: dict[str, Any]


class Envs:
    """A vector of environments with the same interface for all kinds of Gymnasium vectors.

    It hides differences of autoreset modes, and runs multi-player games as a vector, too.
    """

    def __init__(
        self, vector: Vector, name: str, frame_stack: int = 1, calls: EnvCalls | None = None
    ) -> None:
        """Takes over `vector`; `calls` is the record that its environments were made with."""
        self._vector, self.name, self._closed = vector, name, False
        self.calls = calls or EnvCalls()
        self.tables = vector if isinstance(vector, Tables) else None
        self._mode = _mode_of(vector, name)
        self._read = MODES[self._mode] if self.tables is None else Envs._lanes
        self.codec = SpaceCodec(vector.single_observation_space, vector.single_action_space)
        extras = () if self.tables is None else (PLAYED,)
        self.spec = EnvSpec(name, self.codec.leaves, self.codec.action, frame_stack, extras)
        if self.tables is not None and frame_stack > 1:
            raise ConfigError(
                f"env.frame_stack is {frame_stack}, and {name} is a game, in which a seat sees one "
                "observation at a time; set env.frame_stack=1, or stack frames in the game itself"
            )
        self._makes_progress = any(states.count_progress(vector))
        self._calls = 0  # of step
        self._obs: Obs | None = None
        self._size()
        if self.tables is not None:
            self.tables.changed = self._size

    def _size(self) -> None:
        """Sets the number of environments to that of the vector, and allocates arrays for them.

        Called again when the opponents of a multi-player game are set (`Tables.invite`), which may
        change the number.
        """
        self.num = self._vector.num_envs
        self._all, self._none = _constant(self.num, True), _constant(self.num, False)
        self._ended = self._none  # [E] whether the episode ended with the latest step
        self._skipped = np.zeros(self.num, dtype=np.int64)  # [E] calls that only reset

    @property
    def due(self) -> Bools:
        """Boolean array [E]: which of the E environments must act now.

        All of them, except in multi-player games, in which each environment stands for a player:
        there, those whose player is to move.
        """
        return self._all if self.tables is None else self.tables.due

    def reset(self, seed: int) -> Obs:
        """Starts new episodes in all environments.

        Returns the first observations, in the form that replay stores.
        """
        result = self._call("reset", seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise self._error(Fault(f"reset returned a {type(result).__name__}, not (obs, info)"))
        with self._named_errors("reset"):
            obs = self.codec.encode(result[0], self.num)
        self._obs, self._ended = obs, self._none
        return obs

    def step(self, action: Array) -> Steps:
        """Steps all E environments with actions [E, *shape], in the form that replay stores.

        Raises `EnvError` if an environment fails or returns invalid values.
        """
        if self.spec.masked:
            self._check_masks(action)
        result = self._call("step", self.codec.decode_action(action))
        self._calls += 1
        try:
            steps = self._read(self, self._answer(result))
        except Fault as fault:
            raise self._error(fault) from fault.__cause__
        self._obs = steps.obs
        return steps

    def _check_masks(self, action: Array) -> None:
        """Raises an error if an action is forbidden by the action mask of its environment.

        Environments that ignore their action in this step are not checked.
        """
        idle = self._ended if self._mode is AutoresetMode.NEXT_STEP else ~self.due
        if self._obs is None:
            return
        try:
            refuse_forbidden(self._obs, action, self.spec, idle)
        except Fault as fault:
            raise self._error(fault, "step") from None

    def finished_info(self, steps: Steps, index: int, keys: tuple[str, ...]) -> dict[str, float]:
        """Returns numbers from the `info` of the episode that just ended in environment `index`.

        A key "a/b" reads nested dicts. Besides `keys`, those in `INFO_KEYS` (in multi-player games
        `GAME_INFO_KEYS`) are always read. Entries that are missing or not numbers are left out.
        """
        info: Any = steps.info
        always: tuple[str, ...] = INFO_KEYS
        if self.tables is not None:
            always = GAME_INFO_KEYS
        elif self._mode is AutoresetMode.SAME_STEP:
            info = info.get("final_info", {})
        if not info:
            return {}
        found = {key: _number(_entry(info, index, key)) for key in (*keys, *always)}
        return {key: number for key, number in found.items() if number is not None}

    def export_state(self) -> dict[str, Any] | None:
        """Returns the exact state of all environments as JSON.

        Returns None before the first reset, or if one of the environments cannot be saved.
        """
        if self._obs is None:
            return None
        with self._named_errors("export_state"):
            layers = states.export(self._vector)
        if layers is None:
            return None
        return {
            "version": STATE_VERSION,
            "calls": self._calls,
            "skipped": self._skipped.tolist(),
            "ended": self._ended.tolist(),
            "obs": {k: states.pack(v) for k, v in self.spec.unpack(self._obs).items()},
            "layers": layers,
        }

    def restore_state(self, state: dict[str, Any]) -> Obs:
        """Restores a state that `export_state` returned; returns the observations to act on.

        Raises `CheckpointError` if it was saved by another version, or for other environments.
        """
        if state.get("version") != STATE_VERSION:
            raise CheckpointError(
                f"the saved environments have format {state.get('version')}, this version reads "
                f"{STATE_VERSION}; resume with the version of Rookery that saved them"
            )
        self._call("reset", seed=0)  # creates attributes that only exist after a reset
        with self._named_errors("restore_state"):
            states.restore(self._vector, state["layers"])
        self._calls, self._skipped = state["calls"], np.array(state["skipped"], dtype=np.int64)
        self._ended = np.array(state["ended"], dtype=np.bool_)
        self._obs = self.spec.pack({k: states.unpack(v) for k, v in state["obs"].items()})
        return self._obs

    def export_progress(self) -> list[Any] | None:
        """Returns progress that is kept across episodes, such as the level of a curriculum.

        It is one JSON value for each environment or wrapper that defines `export_progress`. Returns
        None if there are none, or all of them returned None.
        """
        if not self._makes_progress:
            return None
        with self._named_errors("export_progress"):
            progress = states.export_progress(self._vector)
        return None if all(one is None for one in progress) else progress

    def restore_progress(self, progress: Sequence[Any]) -> None:
        """Restores progress from `export_progress`; it takes effect at the next reset.

        If there are more environments than saved values, the values are repeated in order.
        """
        if not (self._makes_progress and progress):
            return
        with self._named_errors("restore_progress"):
            states.restore_progress(self._vector, progress)

    @property
    def pictures(self) -> bool:
        """Whether the environments were made with a render mode, which `render` needs."""
        return self._vector.render_mode is not None

    @property
    def fps(self) -> float | None:
        """The environment's `render_fps` (frames per second), or None if it gives none."""
        fps = self._vector.metadata.get("render_fps")
        return float(fps) if fps else None

    def render(self) -> Array | None:
        """Returns a frame [H, W, 3] of the first environment, or None if it does not render."""
        if self._vector.render_mode is None:
            return None
        first = self._vector.envs[0] if isinstance(self._vector, SyncVectorEnv) else self._vector
        with self._named_errors("render"):
            frame: Any = first.render()
        if first is self._vector and frame is not None:
            frame = frame[0]
        return None if frame is None else np.array(frame)

    def close(self) -> None:
        """Closes every environment; a second call does nothing, even if the first one failed."""
        if self._closed:
            return
        self._closed = True
        with self._named_errors("close"), self.calls.during("close"):
            self._vector.close()

    @contextmanager
    def _named_errors(self, call: str) -> Iterator[None]:
        """Context of a method `call` of the user's code: errors name the environment."""
        try:
            with named_errors(self.name, call):
                yield
        except Fault as fault:
            raise self._error(fault) from fault.__cause__

    def _call(self, call: str, *args: Any, **kwargs: Any) -> Any:
        self.calls.running = call  # without `during`: every step passes here
        try:
            return getattr(self._vector, call)(*args, **kwargs)
        except Fault as fault:
            raise self._error(fault, call) from fault.__cause__
        except ENV_ERRORS as error:  # an environment may raise anything
            raise self._error(Fault(raised(call, error)), call) from error
        except KeyboardInterrupt as error:
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                raise  # it may be the user's Ctrl+C; workers ignore that
            raise self._error(Fault(raised(call, error)), call) from error
        finally:
            self.calls.running = ""
            self.calls.beat()

    def _error(self, fault: Fault, call: str = "") -> EnvError:
        """Converts a `Fault` to an `EnvError` with the environment's name and step number."""
        calls = self._calls + (call == "step")  # a step that raised is not counted yet
        if fault.index is None:
            return EnvError(f"{self.name}, step {calls}: {fault.what}")
        played = calls - int(self._skipped[fault.index])
        return EnvError(f"{self.name}, environment {fault.index}, step {played}: {fault.what}")

    def _answer(self, result: Any) -> _Answer:
        if not (isinstance(result, tuple) and len(result) == 5):
            old = isinstance(result, tuple) and len(result) == 4
            raise Fault(f"step returned a wrong tuple; {OLD_STEP if old else STEP_FORM}")
        return _Answer(
            self.codec.encode(result[0], self.num),
            _rewards(result[1], self.num),
            _flags("terminated", result[2], self.num),
            _flags("truncated", result[3], self.num),
            result[4],
        )

    def _same_step(self, answer: _Answer) -> Steps:
        """Converts what a vector with SAME_STEP autoreset returned from `step` to `Steps`.

        The final observation of an episode is read from `info`.
        """
        self._ended = answer.terminated | answer.truncated
        final_obs = answer.obs
        if np.count_nonzero(self._ended):
            final_obs = self._final_obs(answer)
        return Steps(*answer[:4], final_obs, self._all, answer.info, self._all)

    def _next_step(self, answer: _Answer) -> Steps:
        """Converts what a vector with NEXT_STEP autoreset returned from `step` to `Steps`.

        The step after an episode's end only resets the environment, so it is not `real`.
        """
        real = self._all
        if np.count_nonzero(self._ended):
            real = ~self._ended
            self._skipped += self._ended
            np.logical_and(answer.terminated, real, out=answer.terminated)
            np.logical_and(answer.truncated, real, out=answer.truncated)
        self._ended = answer.terminated | answer.truncated
        return Steps(*answer[:4], answer.obs, real, answer.info, self._all)

    def _lanes(self, answer: _Answer) -> Steps:
        """Converts what a vector of multi-player games returned from `step` to `Steps`.

        Each environment (lane) of such a vector stands for one player. It is `real` if the player's
        transition is complete: the player is to move again, or the game has ended for it.
        """
        info, final_obs = answer.info, answer.obs
        self._ended = answer.terminated | answer.truncated
        if np.count_nonzero(self._ended):
            final_obs = self.codec.encode(info["final_obs"], self.num)
        lanes = (info["due"], info["rested"], info[OPPONENT])
        return Steps(*answer[:4], final_obs, info["real"], info, *lanes)

    def _final_obs(self, answer: _Answer) -> Obs:
        given = answer.info.get("final_obs")
        if given is None:
            raise Fault("an episode ended, but info has no 'final_obs'; SAME_STEP promises one")
        leaves = {name: leaf.copy() for name, leaf in self.spec.unpack(answer.obs).items()}
        for index in np.flatnonzero(self._ended).tolist():
            try:
                one = self.codec.encode_one(part(given, index))
            except Fault as fault:
                raise Fault(fault.what, index) from fault.__cause__
            for name, leaf in self.spec.unpack(one).items():
                leaves[name][index] = leaf[0]
        return self.spec.pack(leaves)  # type: ignore[no-any-return]


MODES: dict[AutoresetMode, Callable[[Envs, _Answer], Steps]] = {
    AutoresetMode.SAME_STEP: Envs._same_step,
    AutoresetMode.NEXT_STEP: Envs._next_step,
}


def _mode_of(vector: Vector, name: str) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode")
    if mode not in MODES:
        raise ConfigError(
            f"{name} has the autoreset mode {mode}; it may be NEXT_STEP or SAME_STEP; "
            "set metadata['autoreset_mode'] of the vector environment"
        )
    return mode  # type: ignore[no-any-return]


def _constant(num: int, value: bool) -> Bools:
    array = np.full(num, value)
    array.flags.writeable = False  # returned at every step
    return array


def learned_reward(reward: Array, env: EnvConfig) -> Array:
    """Returns rewards scaled by `env.reward_scale`, then clipped, as replay stores them."""
    if env.reward_scale != 1.0:
        reward = reward * np.float32(env.reward_scale)
    if env.reward_clip is not None:
        reward = reward.clip(-env.reward_clip, env.reward_clip)
    return reward


def _rewards(raw: Any, num: int) -> Floats:
    array = np.asarray(raw)
    if array.shape != (num,) or array.dtype.kind not in "fiub":
        raise Fault(f"the rewards are {array.dtype} of shape {array.shape}; one number each")
    reward = narrowed(array)
    good = np.isfinite(reward)
    if np.count_nonzero(good) != num:
        index = int(np.flatnonzero(~good)[0])
        raise Fault(
            f"the reward is {array[index]}; it must be a finite 32-bit float; "
            "look at what step computes, or clip it there",
            index,
        )
    return reward


def _flags(name: str, raw: Any, num: int) -> Bools:
    array = np.array(raw)  # a copy: the vector may overwrite its own
    if array.shape != (num,) or array.dtype.kind != "b":
        raise Fault(f"{name} is {array.dtype} of shape {array.shape}; one bool each")
    return array


def _entry(info: Any, index: int, key: str) -> Any:
    """Returns one environment's entry `key` of a vector's `info`; None if it is missing.

    Reads three layouts of `info`: a dict of arrays, a list with a dict for each environment, and a
    dict whose entry "each" is such a list, which the wrapper `BoxingGuard` causes.
    """
    if isinstance(info, Mapping) and BOX in info:
        return _nested(info[BOX][index], key)
    if not isinstance(info, Mapping):  # one dict for each environment
        return _nested(info[index], key)
    present = info.get(f"_{key.partition('/')[0]}")
    if present is not None and not present[index]:
        return None
    value = _nested(info, key)
    return None if value is None else value[index]


def _nested(info: Any, key: str) -> Any:
    if not isinstance(info, Mapping):
        return None
    if key in info:
        return info[key]
    head, _, tail = key.partition("/")
    return _nested(info.get(head), tail) if tail else None


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
