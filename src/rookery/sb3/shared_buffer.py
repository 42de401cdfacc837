"""Replay buffer for Stable-Baselines3 from which other runs can sample; needs the extra `sb3`.

    registry = create_distributed_registry()
    buffer_id = registry.register_buffer(run_id="my_run_1", algorithm="SAC")
    model = SAC(
        "MlpPolicy",
        env,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={"registry": registry, "buffer_id": buffer_id},
    )

A pool is the set of replay buffers of runs that share them; a row is one stored transition. From
the first `add` on, the buffer's arrays are a ring buffer in shared memory, which other runs read.
Rows are stored only once, so sharing costs an update of three counters per step. Rows of this run
are sampled with SB3's own code. Samples from other runs' buffers are the first rows of a batch, and
are normalised in the same way.
"""

import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numba import njit
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from rookery.config.schema import Strategy
from rookery.errors import ConfigError, RegistryError, RookeryError
from rookery.replay.ring import (
    COMMITTED,
    RESERVED,
    Column,
    Ring,
    Schema,
    obs_column,
    paired_schema,
)
from rookery.replay.shared_memory import post
from rookery.sharing.argument_types import is_number, is_whole
from rookery.sharing.borrowed_rows import BorrowedRows, Lender, Returns
from rookery.sharing.borrower import Borrower, refuse_ratio
from rookery.sharing.compatibility import terms_of
from rookery.sharing.registry import Registry
from rookery.sharing.sample_counts import SampleCounts
from rookery.types import ActionSpec, Array, Rows

VOID = np.nan  # `done` of a row that must not be sampled
ARRAYS = {"action": "actions", "reward": "rewards", "done": "dones", "timeout": "timeouts"}
_HANDLES = ("_ring", "_borrower", "_counts", "_release", "_columns", "_sampled")  # not pickled


class DistributedReplayBuffer(ReplayBuffer):
    """SB3's replay buffer, shared with other runs; without a registry it samples as SB3's does.

    The registry is the directory of a pool (the set of replay buffers that runs share). The buffer
    replaces SB3's `ReplayBuffer`, `DictReplayBuffer` and `NStepReplayBuffer`, and also combines
    Dict observations with n-step returns. It does not replace `HerReplayBuffer`.

    Each `buffer_id` has one ring buffer in shared memory and one writer. The first `add` makes this
    buffer the writer; a second writer raises an error. A buffer that only samples does not become
    the writer. A new writer invalidates the rows (stored transitions) of an earlier one, and copies
    the rows that it already has into the ring.

    A saved buffer (`save_replay_buffer`) holds its rows, settings and the path of the pool. After
    loading, it has a copy of the rows, samples from other runs if the pool still exists, and shares
    its rows from its first `add` on. If the pool or the id no longer exists, or the id has another
    writer, the buffer stays local and warns once. The same holds for the empty buffer that
    `model.load` builds.

    `seed` is the seed for samples from other runs. By default it is derived from the state of
    numpy's global generator, without advancing it. SB3 seeds that generator and samples with it.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        registry: Registry | None = None,
        buffer_id: str | None = None,
        sample_strategy: str = Strategy.SELF_HEAVY,
        cross_sample_ratio: float = 0.2,
        n_steps: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        **unknown: object,
    ):
        _refuse_unknown(unknown)
        self.sample_strategy = _strategy(sample_strategy)
        self.cross_sample_ratio = cross_sample_ratio
        self.n_steps, self.gamma = n_steps, gamma
        self.registry, self.buffer_id = registry, buffer_id
        self._check_numbers(seed)
        self._check_arguments(optimize_memory_usage)
        self._seed = seed if seed is not None else _seed_of_global_state()
        stock: Any = (
            DictReplayBuffer if isinstance(observation_space, spaces.Dict) else ReplayBuffer
        )
        stock.__init__(
            self,
            buffer_size,
            observation_space,
            action_space,
            device=device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
        )
        self._written = 0  # rows, in the numbers of the ring
        self._lending = False
        self._set_up()
        try:
            self._join()
        except RegistryError as error:
            if registry is None or not registry.revived:
                raise
            self._stay_local(error)

    def _check_numbers(self, seed: int | None) -> None:
        refuse_ratio(self.cross_sample_ratio)
        steps_are_valid = is_whole(self.n_steps) and self.n_steps >= 1
        if not (steps_are_valid and is_number(self.gamma) and 0 < self.gamma <= 1):
            raise ConfigError(
                f"n_steps={self.n_steps!r} and gamma={self.gamma!r}; give n_steps of at least 1, a "
                "whole number, and a gamma in (0, 1]"
            )
        if seed is not None and not (is_whole(seed) and seed >= 0):
            raise ConfigError(
                f"seed is {seed!r}; give a whole number of at least 0, or leave it out to follow "
                "numpy's global generator"
            )

    def _check_arguments(self, optimize_memory_usage: bool) -> None:
        if self.registry is not None and not isinstance(self.registry, Registry):
            raise ConfigError(
                f"registry is {self.registry!r}, not a registry; give what "
                "create_distributed_registry(path=...) returns"
            )
        if (self.registry is None) != (self.buffer_id is None):
            raise ConfigError(
                f"registry={self.registry} with buffer_id={self.buffer_id!r}; give both, the id "
                "from registry.register_buffer(run_id=..., algorithm=...), or neither"
            )
        if optimize_memory_usage and (self.registry is not None or self.n_steps > 1):
            raise ConfigError(
                "optimize_memory_usage=True stores no next observation, which n-step returns and "
                "the rows of a pool need; leave it out"
            )

    # --- the pool

    @property
    def capacity(self) -> int:
        """Capacity in transitions, over all environments."""
        return self.buffer_size * self.n_envs

    def _set_up(self) -> None:
        """Initializes the attributes that are not pickled, at construction and after unpickling."""
        self._ring: Ring | None = None
        self._borrower: Borrower | None = None
        self._counts = SampleCounts()  # without a pool
        self._release: weakref.finalize[..., DistributedReplayBuffer] | None = None
        self._columns = _flat(stored_arrays(self))
        self._sampled = _obs_and_action(self._schema())
        self._stock = _sb3_gather(self.observation_space, self.n_steps)
        self._is_discrete = isinstance(self.observation_space, spaces.Discrete)

    def _schema(self) -> Schema:
        leaves = _leaves(self.observations)
        return paired_schema(
            {key: (array.shape[2:], str(array.dtype)) for key, array in leaves.items()},
            ((self.action_dim,), str(self.actions.dtype)),
        )

    def _join(self) -> None:
        """Joins the pool of shared replay buffers: opens the ring buffer of this `buffer_id`.

        The ring buffer is in shared memory, and is written from the first `add` on. Does nothing
        without a registry; raises RegistryError if the registry is stopped.
        """
        registry, buffer_id = self.registry, self.buffer_id
        if registry is None or buffer_id is None:
            return
        if not registry.available:
            raise RegistryError(
                f"{type(self).__name__}: the registry of {registry.path} is stopped, or its pool "
                "is gone; start it before you build buffers, and stop it after training"
            )
        note = registry.note(buffer_id)
        schema = self._schema()
        terms = terms_of(
            schema,
            _action_spec(self.action_space),
            reward={"scale": 1.0, "clip": None, "tag": note["reward_tag"]},
            env=note["env"],
            space=str(self.observation_space),
        )
        ring = registry.attach(buffer_id, terms, schema, self.capacity, stride=self.n_envs)
        self._ring, self._borrower = (
            ring,
            Borrower(
                registry,
                buffer_id,
                [Lender(buffer_id, ring)],
                *self._sampled,
                strategy=self.sample_strategy,
                ratio=self.cross_sample_ratio,
                seed=self._seed,
            ),
        )
        self._release = weakref.finalize(self, _close, self._borrower, ring)

    def _stay_local(self, reason: RookeryError) -> None:
        warnings.warn(f"this replay buffer stays local: {reason}", stacklevel=3)
        self.close()
        self.registry = self.buffer_id = None

    def _lend(self, ring: Ring) -> None:
        """Starts sharing with other runs: becomes the writer of the ring buffer in shared memory.

        Copies the stored transitions into the ring, whose memory then replaces the buffer's arrays.
        """
        assert self.registry is not None, "a ring without a registry"
        assert self.buffer_id is not None, "a ring without an id"
        try:
            self.registry.claim(ring, self.buffer_id)
        except RegistryError as error:
            if not self.registry.revived:
                raise
            self._stay_local(error)
            return
        size, first = self.size(), _invalidate_rows(ring)
        self._written = first + (self.pos + self.full * self.buffer_size) * self.n_envs
        post(ring.words, RESERVED, self._written)
        views = {
            name: ring.columns[name].reshape(array.shape)
            for name, array in stored_arrays(self).items()
        }
        for name, array in stored_arrays(self).items():
            views[name][:size] = array[:size]
        post(ring.words, COMMITTED, self._written)
        self._use(views)
        self._lending = True

    def _use(self, arrays: Mapping[str, Array]) -> None:
        keys, is_dict = _leaves(self.obs_shape), isinstance(self.observation_space, spaces.Dict)
        for attribute, before in (("observations", ""), ("next_observations", "next_")):
            leaves = {key: arrays[before + obs_column(key)] for key in keys}
            setattr(self, attribute, leaves if is_dict else leaves[""])
        for name, attribute in ARRAYS.items():
            setattr(self, attribute, arrays[name])
        self._columns = _flat(arrays)

    def close(self) -> None:
        """Leaves the pool of shared buffers; this buffer keeps a copy of its transitions."""
        if self._lending:
            self._lending = False
            self._use({name: array.copy() for name, array in stored_arrays(self).items()})
        if self._release is not None:
            self._release()
        self._ring = self._borrower = self._release = None

    # --- rows

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: Array,
        reward: Array,
        done: Array,
        infos: list[dict[str, Any]],
    ) -> None:
        """Stores one transition of every environment; other runs can then sample them."""
        if self._ring is not None and not self._lending:
            self._lend(self._ring)
        after = self._written + self.n_envs
        ring = self._ring
        if ring is None:
            self._put(obs, next_obs, action, reward, done, infos)
        else:  # a failed `add` commits nothing; the next one overwrites its rows
            post(ring.words, RESERVED, after)
            self._put(obs, next_obs, action, reward, done, infos)
            post(ring.words, COMMITTED, after)
            ring.beat()
        self._written = after

    def _put(self, *step: Any) -> None:
        """Writes one transition of every environment into the arrays at the write position.

        The values are those that SB3's `add` writes, with fewer copies.
        """
        if self.optimize_memory_usage:
            super().add(*step)
            return
        obs, next_obs, action, reward, done, infos = step
        pos = self.pos
        self._put_obs(self.observations, obs)
        self._put_obs(self.next_observations, next_obs)
        self.actions[pos] = action.reshape(self.n_envs, self.action_dim)
        self.rewards[pos] = reward
        self.dones[pos] = done
        if self.handle_timeout_termination:
            flags = [info.get("TimeLimit.truncated", False) for info in infos]
            self.timeouts[pos] = np.array(flags)  # a flag may be an array of one element
        self.pos = pos + 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def _put_obs(self, target: Any, obs: Any) -> None:
        if isinstance(target, dict):
            for key, leaf in target.items():
                leaf[self.pos] = obs[key].reshape(leaf.shape[1:])
        elif self._is_discrete:
            target[self.pos] = obs.reshape(target.shape[1:])
        else:
            target[self.pos] = obs

    def reset(self) -> None:
        """Removes all transitions; other runs cannot sample them any more either."""
        super().reset()
        self._written = -(-self._written // self.capacity) * self.capacity
        if self._lending:
            assert self._ring is not None, "lending without a ring"
            self._written = _invalidate_rows(self._ring)

    # --- samples

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Samples a batch: first transitions from other runs' buffers, then those of this run."""
        borrowed = self._borrow(batch_size, env)
        if borrowed is None:
            return super().sample(batch_size, env=env)
        return self._samples(borrowed, self._sample_slots(batch_size - borrowed.filled), env)

    def _get_samples(self, batch_inds: Array, env: VecNormalize | None = None) -> Any:
        if self._stock is not None:
            return self._stock(self, batch_inds, env)
        borrowed = self._blank(len(batch_inds))  # SB3 has no n-step returns for Dict observations
        slots = batch_inds * self.n_envs + np.random.randint(  # noqa: NPY002  as in SB3
            0, self.n_envs, size=len(batch_inds)
        )
        return self._samples(borrowed, slots, env)

    def _sample_slots(self, count: int) -> Rows:
        """Samples array indices of this run's transitions, uniformly."""
        if count == 0:
            return np.empty(0, dtype=np.int64)
        return np.random.randint(0, self.size() * self.n_envs, size=count)  # noqa: NPY002  as in SB3

    def _borrow(self, batch: int, env: VecNormalize | None) -> BorrowedRows | None:
        if self._borrower is None:
            self._counts.local += batch
            return None
        scale, clip = _reward_terms(env)
        return self._borrower.borrow(batch, Returns(self.n_steps, self.gamma, scale, clip))

    def _blank(self, batch: int) -> BorrowedRows:
        """Returns uninitialized arrays for a batch that gets only transitions of this run."""
        return BorrowedRows.blank(*self._sampled, batch)

    def _samples(self, borrowed: BorrowedRows, slots: Rows, env: VecNormalize | None) -> Any:
        """Completes a batch with this run's transitions at array indices `slots`; returns tensors.

        `borrowed` holds the batch's first transitions, already sampled from other runs' buffers.
        """
        columns, first = self._columns, borrowed.filled
        dones = np.empty(borrowed.reward.size, dtype=np.float32)
        np.equal(borrowed.discount[:first], 0.0, out=dones[:first], casting="unsafe")
        scale, clip = _reward_terms(env)
        last = _walk(
            columns["reward"],
            columns["done"],
            columns["timeout"],
            slots,
            self._newest,
            self.n_envs,
            self.n_steps,
            self.gamma,
            scale,
            clip,
            borrowed.reward[first:],
            borrowed.discount[first:],
            dones[first:],
        )
        columns["action"].take(slots, axis=0, out=borrowed.action[first:], mode="clip")
        for name, leaf in borrowed.obs.items():
            column = obs_column(name)
            columns[column].take(slots, axis=0, out=leaf[first:], mode="clip")
            then = columns[f"next_{column}"]
            then.take(last, axis=0, out=borrowed.next_obs[name][first:], mode="clip")
        return self._tensors(borrowed, dones, env)

    @property
    def _newest(self) -> int:
        """Array index of the first environment's newest transition, at which n-step returns end."""
        return (self.pos - 1) % self.buffer_size * self.n_envs

    def _tensors(self, borrowed: BorrowedRows, dones: Array, env: VecNormalize | None) -> Any:
        sides: Any = (borrowed.obs, borrowed.next_obs)
        kind: Any = DictReplayBufferSamples
        if not isinstance(self.observations, dict):
            sides, kind = tuple(side[""] for side in sides), ReplayBufferSamples
        obs, next_obs = (self._tensor(self._normalize_obs(side, env)) for side in sides)
        discounts = self._tensor(borrowed.discount.reshape(-1, 1)) if self.n_steps > 1 else None
        return kind(
            obs,
            self._tensor(borrowed.action),
            next_obs,
            self._tensor(dones.reshape(-1, 1)),
            self._tensor(borrowed.reward.reshape(-1, 1)),
            discounts,
        )

    def _tensor(self, array: Any) -> Any:
        if isinstance(array, dict):
            return {key: self._tensor(leaf) for key, leaf in array.items()}
        return self.to_torch(array, copy=False)

    # --- statistics

    def get_stats(self) -> dict[str, Any]:
        """Returns how many transitions were sampled, in total and by the run they come from.

        All buffers of this process on one registry and `buffer_id` return the same numbers, also a
        buffer that the user has built beside the one of the model.
        """
        counts = self._counts if self._borrower is None else self._borrower.counts
        return {"local_size": self._local_size(), **counts.stats()}

    def _local_size(self) -> int:
        """Returns the number of this run's transitions: the ring's, if this buffer has none."""
        own = self.size() * self.n_envs
        return own if own or self._ring is None else _count_valid_rows(self._ring)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in _HANDLES}
        return {**state, "_stock": None, "_lending": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()
        try:
            self._join()
        except RookeryError as error:
            self._stay_local(error)


def stored_arrays(buffer: ReplayBuffer) -> dict[str, Array]:
    """Returns the arrays of SB3's buffer by column name, each [buffer_size, n_envs, ...]."""
    now: Any = buffer.observations
    then: Any = getattr(buffer, "next_observations", {})  # missing with optimize_memory_usage
    return {
        **{obs_column(key): array for key, array in _leaves(now).items()},
        **{f"next_{obs_column(key)}": array for key, array in _leaves(then).items()},
        **{name: getattr(buffer, attribute) for name, attribute in ARRAYS.items()},
    }


def _refuse_unknown(unknown: Mapping[str, object]) -> None:
    """Raises `ConfigError` for arguments that the buffer does not have, such as HER's."""
    if unknown:
        raise ConfigError(
            f"DistributedReplayBuffer has no {', '.join(unknown)}; it replaces SB3's ReplayBuffer, "
            "DictReplayBuffer and NStepReplayBuffer; leave these out, or use SB3's HerReplayBuffer "
            "for hindsight, without a pool"
        )


def _close(borrower: Borrower, ring: Ring) -> None:
    borrower.close()
    ring.close()


def _obs_and_action(schema: Schema) -> tuple[list[Column], Column]:
    """Returns the columns of the observation's leaves, and that of the action."""
    leaves = [column for column in schema if column.name.partition(".")[0] == "obs"]
    return leaves, next(column for column in schema if column.name == "action")


def _invalidate_rows(ring: Ring) -> int:
    """Makes all rows (transitions) of a ring buffer invalid, so that they are never sampled.

    Moves the write position to the start of the ring's arrays; returns the number of the next row.
    """
    reserved = ring.reserved
    if reserved:
        ring.columns["done"][:] = VOID
        ring.reserve(-reserved % ring.capacity)
        ring.commit()
    return ring.committed


def _count_valid_rows(ring: Ring) -> int:
    """Returns how many rows (transitions) of a ring buffer can be sampled."""
    written = ring.columns["done"][: min(ring.committed, ring.capacity)]
    return int(np.count_nonzero(~np.isnan(written)))


def _leaves(value: Any) -> dict[str, Any]:
    """Returns the parts of a Dict observation by key; any other observation has the key ""."""
    return value if isinstance(value, dict) else {"": value}


def _flat(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns views of arrays [buffer_size, n_envs, ...] as [buffer_size * n_envs, ...]."""
    return {
        name: array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
        for name, array in arrays.items()
    }


def _sb3_gather(space: spaces.Space[Any], n_steps: int) -> Any:
    """Returns the SB3 method that gathers a batch for this observation space and `n_steps`.

    Returns None for n-step returns of Dict observations, which SB3 does not have.
    """
    if isinstance(space, spaces.Dict):
        return DictReplayBuffer._get_samples if n_steps == 1 else None
    return ReplayBuffer._get_samples if n_steps == 1 else NStepReplayBuffer._get_samples


def _strategy(name: str) -> Strategy:
    try:
        return Strategy(name)
    except ValueError:
        raise ConfigError(
            f"sample_strategy is {name!r}; choose one of {', '.join(Strategy)}"
        ) from None


def _seed_of_global_state() -> int:
    _, keys, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002  read, not advanced
    return int(np.random.SeedSequence([*map(int, keys[:8]), int(position)]).generate_state(1)[0])


def _reward_terms(env: VecNormalize | None) -> tuple[float, float]:
    """Returns the factor and the clip limit with which `VecNormalize` normalizes rewards.

    Without normalization these are 1 and infinity.
    """
    if env is None or not env.norm_reward:
        return 1.0, np.inf
    return float(1.0 / np.sqrt(env.ret_rms.var + env.epsilon)), float(env.clip_reward)


def _action_spec(space: spaces.Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return ActionSpec(n=int(space.n))
    if isinstance(space, spaces.Box):
        low, high = (bound.astype(np.float64).ravel().tolist() for bound in (space.low, space.high))
        return ActionSpec(shape=space.shape, low=tuple(low), high=tuple(high))
    raise ConfigError(
        f"the action space is {space}; shared buffers support Box, and Discrete that starts at 0; "
        "wrap the environment, or build the buffer without a registry"
    )


@njit(cache=True, nogil=True)
def _walk(  # type: ignore[no-untyped-def]
    rewards, dones, timeouts, slots, newest, stride, n, gamma, scale, clip, total, discount, done
):
    """Computes n-step returns of the transitions at the array indices `slots`.

    Writes them, and their discounts and done flags, to `total`, `discount` and `done`; returns the
    index of each return's last transition. A return ends at the end of its episode, at a time
    limit, or at the newest transition. It is bootstrapped unless the episode terminated.
    """
    last = np.empty(slots.size, dtype=np.int64)
    for i in range(slots.size):
        slot, sum_, factor = slots[i], 0.0, 1.0
        for step in range(n):
            single = scale * rewards[slot]
            sum_ += factor * min(max(single, -clip), clip)
            factor *= gamma
            over = dones[slot] != 0.0 or timeouts[slot] != 0.0
            if over or step == n - 1 or newest <= slot < newest + stride:
                break
            slot = (slot + stride) % dones.size
        total[i], discount[i] = sum_, factor
        done[i] = dones[slot] * (1.0 - timeouts[slot])
        last[i] = slot
    return last
