"""Masks at the environment's door: what counts as one, what is refused, the wrapper for infos."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from masked_envs import NEXT, SAME, TWENTY, Fences, Heedless, Pit, Stuck, TrespassError
from rookery.actors.actor import Actor
from rookery.actors.policy import InferencePolicy, Recipe
from rookery.algorithms import build_algorithm
from rookery.api.rollout_worker import rollout_worker
from rookery.config.load import load
from rookery.config.schema import ActorConfig, EnvConfig
from rookery.envs.action_masks import Corrected, MaskFromInfo, refuse_empty
from rookery.envs.make import check, make
from rookery.envs.space_json import outline, restore
from rookery.envs.spaces import SpaceCodec, spec_of
from rookery.envs.vector import Envs
from rookery.errors import ConfigError, EnvError, ProtocolError
from rookery.evaluation.evaluator import Evaluator
from rookery.export.bundle import PolicyBundle, policy_of
from rookery.networks.named_arrays import arrays_of
from rookery.types import MASK, Leaf, LeafKind

THREE = spaces.Discrete(3, start=4)
SEEN = spaces.Box(-1.0, 1.0, (2,), np.float32)
FENCED = {
    "multibinary": spaces.MultiBinary(3),
    "int8": spaces.Box(0, 1, (3,), np.int8),
    "int64": spaces.Box(0, 1, (3,), np.int64),
    "uint8 that looks like bytes": spaces.Box(0, 255, (3,), np.uint8),
    "bool": spaces.Box(0, 1, (3,), np.bool_),
    "float": spaces.Box(0, 1, (3,), np.float32),
}


def seen(mask: Any) -> spaces.Dict:
    return spaces.Dict({"observation": SEEN, MASK: mask})


def kinds(space: spaces.Dict, action: Any = THREE) -> dict[str, LeafKind]:
    return {leaf.name: leaf.kind for leaf in SpaceCodec(space, action).leaves}


class TestSpaces:
    @pytest.mark.parametrize("space", FENCED.values(), ids=FENCED)
    def test_n_integers_beside_n_choices_are_a_mask(self, space: Any) -> None:
        codec = SpaceCodec(seen(space), THREE)
        mask = np.array([[1, 0, 1], [0, 0, 0]], space.dtype)

        stored: Any = codec.encode({"observation": np.zeros((2, 2), np.float32), MASK: mask}, 2)

        assert Leaf(MASK, (3,), "int8", LeafKind.MASK) in codec.leaves
        assert stored[MASK].dtype == np.int8
        assert stored[MASK].tolist() == [[1, 0, 1], [0, 0, 0]]
        back = codec.decode(stored)[MASK]
        assert back.dtype == space.dtype
        assert np.array_equal(back, mask)

    @pytest.mark.parametrize("space", FENCED.values(), ids=FENCED)
    def test_a_spec_says_that_there_is_one_also_when_it_comes_from_a_file(self, space: Any) -> None:
        again: Any = restore(outline(seen(space)))

        assert spec_of("one", seen(space), THREE).masked
        assert spec_of("one", again, THREE) == spec_of("one", seen(space), THREE)
        assert not spec_of("none", SEEN, THREE).masked

    @pytest.mark.parametrize(
        ("value", "space"), [(2, "int8"), (-1, "int64"), (257, "int64"), (0.5, "float")]
    )
    def test_a_value_that_is_neither_0_nor_1_is_a_fault(self, value: float, space: str) -> None:
        mask = np.ones((1, 3), FENCED[space].dtype)
        mask[0, 1] = value

        with pytest.raises(EnvError, match=r"'action_mask'\[1\] is .*allowed there: only 0 and 1"):
            SpaceCodec(seen(FENCED[space]), THREE).encode(
                {"observation": np.zeros((1, 2), np.float32), MASK: mask}, 1
            )

    @pytest.mark.parametrize(
        "space",
        [spaces.MultiBinary(4), spaces.Box(0, 1, (3, 1), np.int8), spaces.Discrete(3)],
    )
    def test_one_that_does_not_fit_its_choices_is_refused(self, space: Any) -> None:
        with pytest.raises(ConfigError, match=r"with 3 discrete actions .* shape \(3,\)"):
            SpaceCodec(seen(space), THREE)

    def test_one_with_nothing_beside_it_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="it has only a mask, which is no network input; add"):
            SpaceCodec(spaces.Dict({MASK: spaces.MultiBinary(3)}), THREE)

    @pytest.mark.parametrize(
        "action", [spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.MultiDiscrete([3, 3])]
    )
    def test_beside_other_actions_it_is_a_part_like_any_other(self, action: Any) -> None:
        assert kinds(seen(spaces.MultiBinary(3)), action)[MASK] is LeafKind.BINARY
        assert kinds(seen(FENCED["int8"]), action)[MASK] is LeafKind.VECTOR

    def test_so_it_is_further_down(self) -> None:
        deep = spaces.Dict({"observation": SEEN, "other": seen(spaces.MultiBinary(3))})

        assert kinds(deep)["other/action_mask"] is LeafKind.BINARY


def algorithm_for(envs: Envs, name: str = "dqn") -> Any:
    changes = {"algo.name": name, "net.hidden": [8]}
    return build_algorithm(load(changes=changes), envs.spec)


def acting(envs: Envs, name: str = "dqn") -> Actor:
    plan = ActorConfig(envs=envs.num, chunk=32)
    return Actor(envs, algorithm_for(envs, name), plan, EnvConfig(), seed=0, values=True)


class TestDoor:
    @pytest.mark.parametrize("name", ["dqn", "ppo", "r2d2"])
    def test_an_observation_to_act_on_that_allows_nothing_is_an_error_with_a_place(
        self, name: str
    ) -> None:
        actor = acting(make(EnvConfig(), 2, factory=Stuck), name)

        with pytest.raises(EnvError, match=r"Stuck, environment \d, step \d+: .*allows no action"):
            actor.collect(60, 0.5)

    def test_and_so_it_is_in_evaluation(self) -> None:
        def environments(num: int) -> Envs:
            return make(EnvConfig(), num, factory=Stuck)

        envs = environments(1)
        evaluator = Evaluator(environments, algorithm_for(envs), episodes=30)

        with pytest.raises(EnvError, match="end the episode there, or add an action that passes"):
            evaluator.run(seed=0, epsilon=0.5)

    @pytest.mark.parametrize("mode", [SAME, NEXT])
    def test_a_final_one_may_allow_nothing(self, mode: AutoresetMode) -> None:
        vector = Fences(4, mode=mode)
        actor = acting(Envs(vector, "fences"))

        for _ in range(6):
            actor.collect(32, 0.5)
            actor.ring.consume(actor.ring.committed)

        assert vector.episodes > 10

    @pytest.mark.parametrize("action", [0, 1])
    def test_a_forbidden_action_never_reaches_an_environment(self, action: int) -> None:
        envs = make(EnvConfig(), 1, factory=Pit)
        envs.reset(0)
        envs.step(np.array([0]))

        with pytest.raises(
            ProtocolError, match=rf"environment 0: the policy chose action {action}, .*forbids"
        ):
            envs.step(np.array([action]))

    def test_an_algorithm_that_does_not_know_of_masks_is_told_so(self) -> None:
        envs = make(EnvConfig(), 2, factory=Pit)
        config = load(changes={"algo.name": "masked_envs:Heedless", "net.hidden": [8]})
        algorithm = build_algorithm(config, envs.spec)
        actor = Actor(envs, algorithm, ActorConfig(envs=2), EnvConfig(), seed=0)

        assert isinstance(algorithm, Heedless)
        with pytest.raises(ProtocolError, match=r"see rookery\.algorithms\.masking"):
            actor.collect(60, 0.5)

    def test_policies_that_only_act_refuse_it_too(self) -> None:
        config = load(changes={"net.hidden": [8]})
        envs = make(EnvConfig(), 1, factory=Pit)
        policy = InferencePolicy(Recipe(config, Pit), envs.spec, envs.codec)
        payload = PolicyBundle(config, envs.codec, envs.spec, arrays_of(policy.algorithm.acting))
        obs = {"observation": np.zeros(2, np.float32), MASK: np.zeros(TWENTY, np.int8)}

        for one in (policy, policy_of(payload)):
            with pytest.raises(EnvError, match=r"Pit: .*'action_mask' allows no action"):
                one.act(obs)
            with_one = {**obs, MASK: np.eye(TWENTY, dtype=np.int8)[7]}
            assert np.ravel(one.act(with_one)[0] if one is not policy else one.act(with_one)) == 7

    def test_rollouts_keep_to_masks(self) -> None:
        config = load(changes={"net.hidden": [8]})
        envs = make(EnvConfig(), 1, factory=Pit)
        policy = InferencePolicy(Recipe(config, Pit), envs.spec, envs.codec)

        played = rollout_worker(policy, episodes=20, epsilon=1.0)

        assert {step for one in played for step in np.ravel(one.action).tolist()} == {
            0,
            1,
            TWENTY - 1,
        }

    def test_observations_without_a_mask_are_none_of_its_business(self) -> None:
        spec = spec_of("none", SEEN, THREE)
        refuse_empty(np.zeros((2, 2), np.float32), spec)

        assert not spec.masked


class Told(gym.Env[Any, Any]):
    """Says in its info what it allows."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, space: Any = SEEN, action: Any = THREE, *, last: bool = True):
        self.observation_space, self.action_space = space, action
        self.steps, self.last = 0, last

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample() * 0, self._info()

    def step(self, action: Any) -> Any:
        if not self._info()[MASK][action - 4]:
            raise TrespassError(action)
        self.steps += 1
        info = self._info() if self.steps < 3 or self.last else {}
        return self.observation_space.sample() * 0, 1.0, self.steps == 3, False, info

    def _info(self) -> dict[str, Any]:
        return {MASK: np.roll([1, 0, 0], self.steps).astype(np.int8), "steps": self.steps}


def test_algorithms_of_sb3_do_not_meet_masks() -> None:
    sb3 = pytest.importorskip("rookery.sb3.models")
    config = load("sb3-dqn", changes={"env.id": "masked_envs:Pit"})
    envs = sb3.environments(config, None, 1)

    with pytest.raises(ConfigError, match=r"'action_mask', which SB3's DQN ignores; use"):
        sb3.refuse_masks(config, envs)
    envs.close()


class TestWrapper:
    @pytest.mark.parametrize("last", [True, False])
    def test_a_mask_in_the_info_comes_beside_the_observation(self, last: bool) -> None:
        env = MaskFromInfo(Told(last=last))
        env.reset(seed=0)
        obs, info = env.reset()
        masks = [obs[MASK].tolist()]

        for action in (4, 5, 6):
            obs, _, ended, _, _ = env.step(action)
            masks.append(obs[MASK].tolist())

        assert info["steps"] == 0
        assert env.observation_space.contains(obs)
        assert ended
        assert masks == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0] if last else [0, 0, 0]]

    def test_a_dict_gets_one_more_entry(self) -> None:
        class Two(Told):
            def reset(self, **how: Any) -> Any:
                return {"a": np.zeros(2, np.float32)}, self._info()

        obs, _ = MaskFromInfo(Two(spaces.Dict({"a": SEEN}))).reset()

        assert sorted(obs) == ["a", MASK]

    def test_an_info_without_one_is_an_error(self) -> None:
        class Silent(Told):
            def _info(self) -> dict[str, Any]:
                return {}

        with pytest.raises(EnvError, match=r"Silent.*info has no 'action_mask'"):
            make(
                EnvConfig(wrappers=("rookery.envs.action_masks:MaskFromInfo",)), 1, factory=Silent
            ).reset(0)

    def test_what_it_cannot_mask_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="masks Discrete actions"):
            MaskFromInfo(Told(action=SEEN))
        with pytest.raises(ConfigError, match="observations that have one"):
            MaskFromInfo(Told(seen(spaces.MultiBinary(3))))

    def test_taxis_are_driven_by_their_masks(self) -> None:
        config = EnvConfig(id="Taxi", wrappers=("rookery.envs.action_masks:MaskFromInfo",))
        envs = make(config, 2)
        obs: Any = envs.reset(0)

        for _ in range(20):
            obs = envs.step(obs[MASK].argmax(1)).obs

        assert envs.spec.masked
        assert obs[MASK].shape == (2, 6)

    def test_it_has_no_state_of_its_own(self) -> None:
        vector = SyncVectorEnv([lambda: MaskFromInfo(gym.make("CartPole-v1"))])

        assert vector.envs[0].export_state() == {}  # type: ignore[attr-defined]
        vector.close()


class TestCorrected:
    def test_the_next_allowed_action_is_done_instead_of_a_forbidden_one(self) -> None:
        env = Corrected(MaskFromInfo(Told()))
        env.reset(seed=0)

        played = [env.step(action)[2] for action in (6, 4, 6)]

        assert played == [False, False, True]

    def test_so_the_checker_does_not_trespass(self) -> None:
        assert check(EnvConfig(id="masked_envs:Alley")) == []
