"""A vector of environments behind one door.

    envs = Envs(vector, "CartPole-v1")
    obs = envs.reset(seed=3)
    steps = envs.step(action)      # rows for steps.real, final rows where an episode ended
    obs = steps.obs

Of games it has lanes (`tables.py`), of which some may rest: `steps.due` says who acts next.

Whatever reaches the caller has the shape, the type and the finite values its spec promises;
anything else is an `EnvError` that names the environment, its step and the value.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rookery.envs import state as states
from rookery.envs.fault import OLD_STEP, STEP_FORM, Fault, raised
from rookery.envs.guard import BOX
from rookery.envs.masks import refuse_forbidden
from rookery.envs.spaces import Codec, narrowed
from rookery.envs.tables import OPPONENT, PLAYED, Tables
from rookery.errors import CheckpointError, ConfigError, EnvError
from rookery.types import Array, Bools, EnvSpec, Floats, Obs, Rows

Vector: TypeAlias = VectorEnv[Any, Any, Any]

STATE_VERSION = 1
TOLD = ("is_success", "curriculum/agents", "curriculum/size")  # what environments say by themselves
TOLD_OF_GAMES = ("is_success", "points", OPPONENT, "seat")


class Steps(NamedTuple):
    """One step of every environment. The arrays are the caller's to keep, but not to change."""

    obs: Obs  # [E] what to act on next; where an episode ended, the next one's first, if known
    reward: Floats  # [E] float32, raw
    terminated: Bools  # [E]
    truncated: Bools  # [E]
    final_obs: Obs  # [E] where an episode ended: its last observation; elsewhere meaningless
    real: Bools  # [E] False where the environment only reset itself: no row may be stored
    info: dict[str, Any]  # the vector's own; see `finished_info`
    due: Bools  # [E] who acts next; what others do will not be looked at
    rested: Bools | None = None  # [E] lanes: whose action was not looked at. Here a lane that is
    # not real may still wait for what its latest action brings
    opponent: Rows | None = None  # [E] lanes: who the game was played against


class _Answer(NamedTuple):
    """A vector's answer to `step`, checked and encoded."""

    obs: Obs
    reward: Floats
    terminated: Bools
    truncated: Bools
    info: dict[str, Any]


class Envs:
    """Steps environments together, whichever way they reset themselves."""

    def __init__(self, vector: Vector, name: str, frame_stack: int = 1) -> None:
        self._vector, self.name = vector, name
        self.tables = vector if isinstance(vector, Tables) else None
        self._mode = _mode_of(vector, name)
        self._read = MODES[self._mode] if self.tables is None else Envs._lanes
        self.codec = Codec(vector.single_observation_space, vector.single_action_space)
        extras = () if self.tables is None else (PLAYED,)
        self.spec = EnvSpec(name, self.codec.leaves, self.codec.action, frame_stack, extras)
        if self.tables is not None and frame_stack > 1:
            raise ConfigError(
                f"env.frame_stack is {frame_stack}, and {name} is a game, in which a seat sees one "
                "observation at a time; set env.frame_stack=1, or stack frames in the game itself"
            )
        self._growing = states.growing(vector)  # layers that make progress
        self._calls = 0  # of step
        self._obs: Obs | None = None
        self._size()
        if self.tables is not None:
            self.tables.changed = self._size

    def _size(self) -> None:
        """Counts the environments; the lanes of a game are others once somebody is invited."""
        self.num = self._vector.num_envs
        self._all, self._none = _constant(self.num, True), _constant(self.num, False)
        self._ended = self._none  # [E] whose episode was over after the latest step
        self._skipped = np.zeros(self.num, dtype=np.int64)  # [E] calls that only reset

    @property
    def due(self) -> Bools:
        """[E] who has to act now."""
        return self._all if self.tables is None else self.tables.due

    def reset(self, seed: int) -> Obs:
        """Starts a new episode everywhere, seeded; returns the first observations."""
        result = self._ask("reset", seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise self._error(Fault(f"reset returned a {type(result).__name__}, not (obs, info)"))
        try:
            obs = self.codec.encode(result[0], self.num)
        except Fault as fault:
            raise self._error(fault) from fault.__cause__
        self._obs, self._ended = obs, self._none
        return obs

    def step(self, action: Array) -> Steps:
        """Plays one step everywhere. `action` is in the stored form."""
        if self.spec.masked:
            self._look_at_masks(action)
        result = self._ask("step", self.codec.decode_action(action))
        self._calls += 1
        try:
            steps = self._read(self, self._answer(result))
        except Fault as fault:
            raise self._error(fault) from fault.__cause__
        self._obs = steps.obs
        return steps

    def _look_at_masks(self, action: Array) -> None:
        """Nothing forbidden gets out. Whoever rests, or only resets now, does not act."""
        idle = self._ended if self._mode is AutoresetMode.NEXT_STEP else ~self.due
        if self._obs is None:
            return
        try:
            refuse_forbidden(self._obs, action, self.spec, idle)
        except Fault as fault:
            raise self._error(fault, "step") from None

    def finished_info(self, steps: Steps, index: int, keys: tuple[str, ...]) -> dict[str, float]:
        """Returns numbers from the info of the episode that just ended in environment `index`.

        "a/b" looks into nested dicts. `TOLD`, or of games `TOLD_OF_GAMES`, is always looked for.
        What is missing, or is not a number, is left out.
        """
        info: Any = steps.info
        told: tuple[str, ...] = TOLD
        if self.tables is not None:
            told = TOLD_OF_GAMES
        elif self._mode is AutoresetMode.SAME_STEP:
            info = info.get("final_info", {})
        if not info:
            return {}
        found = {key: _number(_entry(info, index, key)) for key in (*keys, *told)}
        return {key: number for key, number in found.items() if number is not None}

    def export_state(self) -> dict[str, Any] | None:
        """Returns JSON-ready data to go on from exactly, or None where a layer cannot be saved."""
        if self._obs is None:
            return None
        try:
            layers = states.export(self._vector)
        except Fault as fault:
            raise self._error(fault) from fault.__cause__
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
        """Goes back to where `export_state` looked; returns the observations to act on."""
        if state.get("version") != STATE_VERSION:
            raise CheckpointError(
                f"the saved environments have format {state.get('version')}, this version reads "
                f"{STATE_VERSION}; resume with the version of Rookery that saved them"
            )
        self._ask("reset", seed=0)  # makes what an environment only has once it was reset
        try:
            states.restore(self._vector, state["layers"])
        except CheckpointError:
            raise
        except Exception as error:  # a user's restore_state: whatever it raises gets a name
            raise EnvError(f"{self.name}: {raised('restore_state', error)}") from error
        self._calls, self._skipped = state["calls"], np.array(state["skipped"], dtype=np.int64)
        self._ended = np.array(state["ended"], dtype=np.bool_)
        self._obs = self.spec.pack({k: states.unpack(v) for k, v in state["obs"].items()})
        return self._obs

    def export_progress(self) -> list[Any] | None:
        """Returns JSON-ready data of what outlasts episodes, of each layer that has some."""
        try:
            told = [states.asked(layer, "export_progress") for layer in self._growing]
        except Fault as fault:
            raise self._error(fault) from fault.__cause__
        return None if all(one is None for one in told) else told

    def restore_progress(self, progress: Sequence[Any]) -> None:
        """Has layers go on from what `export_progress` gave; it counts from the next reset on.

        Where there are more layers now than then, they take turns.
        """
        for layer, one in zip(self._growing, cycle(progress), strict=False):
            if one is None:
                continue
            try:
                layer.restore_progress(one)
            except Exception as error:  # a user's code: whatever it raises gets a name
                what = raised("restore_progress", error)
                raise EnvError(f"{self.name}: {what}") from error

    @property
    def pictures(self) -> bool:
        """Was it made to give pictures?"""
        return self._vector.render_mode is not None

    @property
    def fps(self) -> float | None:
        """How many pictures a second are meant to be seen, where the environment says."""
        said = self._vector.metadata.get("render_fps")
        return float(said) if said else None

    def render(self) -> Array | None:
        """Returns the first environment's picture [H, W, 3], where it was made to give one."""
        if self._vector.render_mode is None:
            return None
        first = self._vector.envs[0] if isinstance(self._vector, SyncVectorEnv) else self._vector
        try:
            frame: Any = first.render()
        except Exception as error:  # a user's code: whatever it raises gets a name
            raise EnvError(f"{self.name}: {raised('render', error)}") from error
        if first is self._vector and frame is not None:
            frame = frame[0]
        return None if frame is None else np.array(frame)

    def close(self) -> None:
        """Closes every environment; a second call does nothing."""
        try:
            self._vector.close()
        except Exception as error:  # a user's code: whatever it raises gets a name
            raise EnvError(f"{self.name}: {raised('close', error)}") from error

    def _ask(self, call: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self._vector, call)(*args, **kwargs)
        except Fault as fault:
            raise self._error(fault, call) from fault.__cause__
        except Exception as error:  # anything may come out of an environment: it gets a name
            raise self._error(Fault(raised(call, error)), call) from error

    def _error(self, fault: Fault, call: str = "") -> EnvError:
        """Says where a fault happened. Steps count from 1; a reset happens after a step."""
        calls = self._calls + (call == "step")  # a step that raised has not been counted yet
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
        """The next episode has begun already; the old one's last observation is in the info."""
        self._ended = answer.terminated | answer.truncated
        final_obs = answer.obs
        if np.count_nonzero(self._ended):
            final_obs = self._final_obs(answer)
        return Steps(*answer[:4], final_obs, self._all, answer.info, self._all)

    def _next_step(self, answer: _Answer) -> Steps:
        """Whoever ended at the step before was only reset now, and has played nothing."""
        real = self._all
        if np.count_nonzero(self._ended):
            real = ~self._ended
            self._skipped += self._ended
            np.logical_and(answer.terminated, real, out=answer.terminated)
            np.logical_and(answer.truncated, real, out=answer.truncated)
        self._ended = answer.terminated | answer.truncated
        return Steps(*answer[:4], answer.obs, real, answer.info, self._all)

    def _lanes(self, answer: _Answer) -> Steps:
        """Lanes that are not real rest, or wait for what their action brings."""
        info, final_obs = answer.info, answer.obs
        self._ended = answer.terminated | answer.truncated
        if np.count_nonzero(self._ended):
            final_obs = self.codec.encode(info["final_obs"], self.num)
        told = (info["due"], info["rested"], info[OPPONENT])
        return Steps(*answer[:4], final_obs, info["real"], info, *told)

    def _final_obs(self, answer: _Answer) -> Obs:
        given = answer.info.get("final_obs")
        if given is None:
            raise Fault("an episode ended, but info has no 'final_obs'; SAME_STEP promises one")
        leaves = {name: leaf.copy() for name, leaf in self.spec.unpack(answer.obs).items()}
        for index in np.flatnonzero(self._ended).tolist():
            try:
                one = self.codec.encode_one(_at(given, index))
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
    array.flags.writeable = False  # handed out at every step
    return array


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
    array = np.array(raw)  # a copy: the vector may go on writing into its own
    if array.shape != (num,) or array.dtype.kind != "b":
        raise Fault(f"{name} is {array.dtype} of shape {array.shape}; one bool each")
    return array


def _at(batch: Any, index: int) -> Any:
    """Returns one environment's part of a batch that may be a dict of batches."""
    if isinstance(batch, Mapping):
        return {key: _at(part, index) for key, part in batch.items()}
    return batch[index]


def _entry(info: Any, index: int, key: str) -> Any:
    """Finds an entry in any of the layouts vectors use; None where it is not there."""
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
