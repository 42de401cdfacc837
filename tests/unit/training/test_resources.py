"""The estimate: what a run will take is added up, and refused in time where it is too much."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from rookery.algorithms import build_algorithm, outline_algorithm, row_spec
from rookery.config.algorithms import known
from rookery.config.load import load
from rookery.config.schema import Config, Engine
from rookery.envs.make import make
from rookery.errors import ConfigError
from rookery.replay.ring import row_bytes, schema_of
from rookery.runtime import machine
from rookery.runtime.machine import Space
from rookery.training import resources as module
from rookery.training.build import Parts, build_parts
from rookery.training.resources import (
    ACTOR_FILES,
    COPIES,
    GPU_BYTES,
    PROCESS_BYTES,
    PROCESSES,
    SPARE_FILES,
    ResourceEstimate,
    crowding,
    estimate,
    refuse_descriptors,
    refuse_devices,
    refuse_memory,
    refuse_what_cannot_fit,
)
from rookery.types import EnvSpec

NEED = ResourceEstimate(replay=6_000, weights=300, processes=100, checkpoints=9_000)


def config(**changes: Any) -> Config:
    small = {"replay.capacity": 500, "env.check": False, "net.hidden": [4]}
    return load("corridor", changes=small | changes)


@pytest.fixture
def parts() -> Iterator[Parts]:
    made = build_parts(config())
    yield made
    made.close()


class TestAdding:
    def test_replay_is_at_least_its_rows(self, parts: Parts) -> None:
        need = estimate(parts.config, parts.spec, parts.learner.algorithm)
        rows = 500 * row_bytes(schema_of(parts.spec))

        assert rows <= need.replay <= 1.5 * rows

    def test_weights_are_those_of_every_role(self, parts: Parts) -> None:
        # One network: 8 → 4 → 2 in float32. The learner trains one beside a target of the same
        # size, the running return scale (3 numbers) with them; two moments; an actor's, and
        # five copies elsewhere.
        net = 4 * ((8 * 4 + 4) + (4 * 2 + 2))
        need = estimate(parts.config, parts.spec, parts.learner.algorithm)

        assert need.weights == (2 * net + 3 * 4) + 2 * net + (COPIES + 1) * net
        assert need.processes == PROCESSES * PROCESS_BYTES

    def test_checkpoints_hold_rows_only_where_they_are_asked_to(self, parts: Parts) -> None:
        with_rows = estimate(parts.config, parts.spec, parts.learner.algorithm)
        without = estimate(
            config(**{"checkpoint.replay": False}), parts.spec, parts.learner.algorithm
        )

        assert with_rows.checkpoints - without.checkpoints == with_rows.replay

    def test_every_checkpoint_kept_takes_room(self, parts: Parts) -> None:
        two, five = (
            estimate(
                config(**{"checkpoint.keep": keep}), parts.spec, parts.learner.algorithm
            ).checkpoints
            for keep in (2, 5)
        )
        net = 4 * ((8 * 4 + 4) + (4 * 2 + 2))

        assert five - two == 3 * (2 * net + 3 * 4 + 3 * net)

    def test_one_that_answers_all_actors_is_a_process_more_and_has_the_only_copy(
        self, parts: Parts
    ) -> None:
        net = 4 * ((8 * 4 + 4) + (4 * 2 + 2))
        local_actors = {"run.mode": "async", "actor.num": 5}
        local, central = (
            estimate(
                config(**local_actors, **{"actor.inference": who}),
                parts.spec,
                parts.learner.algorithm,
            )
            for who in ("local", "central")
        )

        assert central.processes - local.processes == PROCESS_BYTES
        assert local.weights - central.weights == 4 * net

    def test_more_rows_need_more(self, parts: Parts) -> None:
        ten = estimate(config(**{"replay.capacity": 5_000}), parts.spec, parts.learner.algorithm)

        assert ten.replay == 10 * estimate(parts.config, parts.spec, parts.learner.algorithm).replay


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0.0 B"),
        (999, "999 B"),
        (1_500, "1.5 kB"),
        (25_000_000, "25 MB"),
        (3_210_000_000, "3.2 GB"),
        (5_000_000_000_000, "5000 GB"),
    ],
)
def test_sizes_are_said_in_the_largest_unit_that_fits(count: int, said: str) -> None:
    assert f"replay {said}," in str(NEED._replace(replay=count))


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that so many bytes of memory and disk are free."""

    def pretend(memory: int, disk: int) -> None:
        monkeypatch.setattr(machine, "memory", lambda: Space(10**12, memory))
        usage = SimpleNamespace(total=10**12, used=0, free=disk)
        monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)

    return pretend


class TestRefusing:
    @pytest.mark.parametrize(
        ("storage", "memory", "disk"),
        [("memory", 6_400, 9_000), ("disk", 400, 15_000)],
    )
    def test_what_just_fits_is_allowed_and_a_byte_less_is_not(
        self, room: Any, tmp_path: Path, storage: str, memory: int, disk: int
    ) -> None:
        asked = config(**{"replay.storage": storage})

        room(memory, disk)
        refuse_what_cannot_fit(NEED, asked, tmp_path)
        room(memory - 1, disk)
        with pytest.raises(ConfigError, match="of memory"):
            refuse_what_cannot_fit(NEED, asked, tmp_path)
        room(memory, disk - 1)
        with pytest.raises(ConfigError, match="of disk"):
            refuse_what_cannot_fit(NEED, asked, tmp_path)

    def test_too_little_memory_says_which_settings_to_change(
        self, room: Any, tmp_path: Path
    ) -> None:
        room(5_000, 10**9)
        with pytest.raises(ConfigError) as caught:
            refuse_what_cannot_fit(NEED, config(), tmp_path)

        said = str(caught.value)
        assert "needs 6.4 kB of memory, 5.0 kB are available" in said
        assert "lower replay.capacity (500), or set replay.storage=disk" in said

    def test_too_little_disk_says_which_settings_to_change(self, room: Any, tmp_path: Path) -> None:
        room(10**9, 5_000)
        with pytest.raises(ConfigError) as caught:
            refuse_what_cannot_fit(NEED, config(), tmp_path)

        said = str(caught.value)
        assert f"needs 9.0 kB of disk, {tmp_path} has 5.0 kB free" in said
        assert "set checkpoint.replay=false" in said

    def test_too_large_networks_say_which_setting_to_change(
        self, room: Any, tmp_path: Path
    ) -> None:
        need = NEED._replace(weights=7_000)

        room(5_000, 10**9)
        with pytest.raises(ConfigError, match=r"are available; lower net\.hidden \(\[4\]\)$"):
            refuse_what_cannot_fit(need, config(), tmp_path)
        room(10**9, 5_000)
        with pytest.raises(ConfigError, match=r"lower net\.hidden \(\[4\]\), or checkpoint\.keep"):
            refuse_what_cannot_fit(need, config(), tmp_path)


def local_actors(num: int, engine: str = "processes", **changes: Any) -> Config:
    crowd = {"run.mode": "sync", "run.engine": engine, "actor.num": num}
    return config(**crowd, **changes)


class TestManyActors:
    def test_too_little_memory_names_the_number_of_actors_too(self, room: Any) -> None:
        room(5_000, 10**9)

        with pytest.raises(
            ConfigError, match=r"lower replay\.capacity \(500\) or actor\.num \(3\)"
        ):
            refuse_memory(NEED, local_actors(3))

    @pytest.mark.parametrize("engine", [Engine.INLINE, Engine.PROCESSES])
    def test_descriptors_that_just_suffice_are_allowed_and_one_less_is_not(
        self, monkeypatch: pytest.MonkeyPatch, engine: Engine
    ) -> None:
        need = 10 + SPARE_FILES + 7 * ACTOR_FILES[engine]
        monkeypatch.setattr(machine, "open_files", lambda: 10)
        for limits in ((need, need), (-1, -1)):
            monkeypatch.setattr(machine, "descriptors", lambda limits=limits: limits)
            refuse_descriptors(local_actors(7, engine))

        monkeypatch.setattr(machine, "descriptors", lambda: (need - 1, need - 1))
        with pytest.raises(ConfigError, match=f"7 actors need about {need} descriptors"):
            refuse_descriptors(local_actors(7, engine))

    @pytest.mark.parametrize(
        ("hard", "help"),
        [
            (-1, "ulimit -n 4096, or lower actor.num"),
            (100_000, "ulimit -n 4096, or lower actor.num"),
            (2_000, "ulimit -n 2000, or lower actor.num"),
            (256, "ask for more than 256 in limits.conf, or lower actor.num"),
        ],
    )
    def test_too_many_open_files_says_what_helps(
        self, monkeypatch: pytest.MonkeyPatch, hard: int, help: str
    ) -> None:
        monkeypatch.setattr(machine, "descriptors", lambda: (128, hard))

        with pytest.raises(ConfigError, match=r"^too many open files: ") as caught:
            refuse_descriptors(local_actors(100))
        assert str(caught.value).endswith(help)

    def test_an_actor_takes_as_many_descriptors_as_is_assumed(self) -> None:
        taken = {}
        for num in (1, 3):
            before = machine.open_files()
            parts = build_parts(local_actors(num, "inline"))
            taken[num] = machine.open_files() - before
            parts.close()

        assert taken[3] - taken[1] == 2 * ACTOR_FILES[Engine.INLINE]
        assert taken[1] < SPARE_FILES

    def test_gpus_that_just_suffice_are_allowed_and_a_byte_less_is_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
        asked = local_actors(5, **{"actor.devices": ["cuda:0", "cuda:1"]})  # three on the first

        monkeypatch.setattr(machine, "gpu_memory", lambda number: Space(10**12, 3 * GPU_BYTES))
        refuse_devices(asked)
        monkeypatch.setattr(machine, "gpu_memory", lambda number: Space(10**12, 3 * GPU_BYTES - 1))
        with pytest.raises(ConfigError) as caught:
            refuse_devices(asked)

        said = str(caught.value)
        assert said.startswith("GPU out of memory: 3 actors need about 1.9 GB of cuda:0")
        assert "lower actor.num (5), name more devices in actor.devices, or leave it out" in said

    def test_one_that_answers_all_actors_has_the_device_for_itself(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        monkeypatch.setattr(machine, "gpu_memory", lambda number: Space(10**12, GPU_BYTES))
        asked = local_actors(5, **{"actor.devices": ["cuda"], "actor.inference": "central"})

        refuse_devices(asked)
        monkeypatch.setattr(machine, "gpu_memory", lambda number: Space(10**12, GPU_BYTES - 1))
        with pytest.raises(ConfigError, match=r"an inference server needs .*; name another device"):
            refuse_devices(asked)

    def test_a_gpu_that_is_not_there_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        monkeypatch.setattr(machine, "gpu_memory", lambda number: Space(10**12, 10**12))

        refuse_devices(local_actors(2, **{"actor.devices": ["cuda"]}))
        with pytest.raises(ConfigError, match="is 'cuda:1', but this machine has 1 CUDA devices"):
            refuse_devices(local_actors(2, **{"actor.devices": ["cuda:0", "cuda:1"]}))

    def test_actors_on_the_cpu_do_not_ask_for_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int] = []
        monkeypatch.setattr(machine, "gpu_memory", asked.append)

        refuse_devices(local_actors(2))
        refuse_devices(local_actors(2, **{"actor.devices": ["cpu"]}))
        assert asked == []

    def test_more_actors_than_processors_are_worth_a_word(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(machine, "cores", lambda: 8)

        assert crowding(local_actors(8)) is None
        assert crowding(local_actors(99, "inline")) is None  # they take turns by design
        said = "9 actors share 8 CPUs and will take turns; lower --actors to 8 or less"
        assert (crowding(local_actors(9), "--actors") or "").startswith(said)


def test_a_run_that_does_not_fit_is_refused_before_replay_takes_its_memory(
    room: Any, tmp_path: Path
) -> None:
    room(10**6, 10**12)
    huge = config(**{"replay.capacity": 10**11})  # terabytes: creating the ring would fail

    def approve(spec: Any, algorithm: Any) -> None:
        refuse_what_cannot_fit(estimate(huge, spec, algorithm), huge, tmp_path)

    with pytest.raises(ConfigError, match=r"lower replay\.capacity \(100000000000\)"):
        build_parts(huge, approve=approve)


def test_networks_that_do_not_fit_are_refused_before_they_take_their_memory(
    room: Any, tmp_path: Path
) -> None:
    room(10**6, 10**12)
    huge = config(**{"net.hidden": [10**6, 10**6]})  # terabytes: building them would fail

    def approve(spec: Any, algorithm: Any) -> None:
        refuse_what_cannot_fit(estimate(huge, spec, algorithm), huge, tmp_path)

    with pytest.raises(ConfigError, match=r"lower net\.hidden \(\[1000000, 1000000\]\)"):
        build_parts(huge, approve=approve)


@pytest.mark.parametrize("name", sorted(name for name in known() if name != "team"))
def test_every_algorithm_is_measured_without_memory_for_its_weights(name: str) -> None:
    env = "Pendulum-v1" if name in ("ddpg", "td3", "sac", "tqc") else "CartPole-v1"
    asked = load(changes={"algo.name": name, "env.id": env, "net.hidden": [8, 8]})
    envs = make(asked.env, 1)
    outline, built = outline_algorithm(asked, envs.spec), build_algorithm(asked, envs.spec)
    envs.close()

    assert outline is not None
    assert {weight.device.type for weight in outline.networks.state_dict().values()} == {"meta"}
    spec = row_spec(envs.spec, built)
    assert row_spec(envs.spec, outline) == spec
    assert estimate(asked, spec, outline) == estimate(asked, spec, built)


class ReadsItsWeights(nn.Linear):
    """A user's network whose constructor computes with the values of its weights."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__(spec.obs[0].shape[0], outputs)
        self.first = float(self.weight[0, 0])


def test_a_network_that_needs_values_is_measured_after_it_is_built(tmp_path: Path) -> None:
    asked = config(**{"net.custom": f"{__name__}:ReadsItsWeights"})
    measured: list[ResourceEstimate] = []

    made = build_parts(
        asked, approve=lambda spec, algorithm: measured.append(estimate(asked, spec, algorithm))
    )
    made.close()

    assert measured[0].weights > 0
