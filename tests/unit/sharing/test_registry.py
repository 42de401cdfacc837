"""The registry: reserving, attaching, refusing, and clearing away."""

import copy
import os
import pickle
import stat

import pytest

from pool_buffers import MOTION, SCHEMA, TERMS, fill, join, pool
from rookery.errors import ConfigError, RegistryError
from rookery.replay.ring import paired_schema
from rookery.sharing.compatibility import terms_of
from rookery.sharing.registry import Registry, create_distributed_registry


def test_a_new_pool_is_a_folder_of_this_user_alone(tmp_path):
    registry = pool(tmp_path)
    assert stat.S_IMODE(registry.path.stat().st_mode) == 0o700


def test_registering_reserves_an_id_that_begins_with_the_run(tmp_path):
    registry = pool(tmp_path)
    buffer_id = registry.register_buffer(run_id="my_run_1", algorithm="SAC")
    (listed,) = registry.list()
    assert buffer_id.startswith("my_run_1-")
    assert (listed.buffer_id, listed.state, listed.rows) == (buffer_id, "reserved", 0)


def test_a_ring_is_there_once_a_buffer_attaches(tmp_path):
    registry = pool(tmp_path)
    buffer_id, ring = join(registry, "a")
    fill(ring, 10)
    (listed,) = registry.list()
    assert (listed.state, listed.rows, listed.capacity) == ("lending", 10, 1000)
    path = registry.path / f"{buffer_id}.ring"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_buffers_on_one_id_share_a_ring_of_which_one_writes(tmp_path):
    registry = pool(tmp_path)
    buffer_id, first = join(registry, "a")
    second = registry.attach(buffer_id, TERMS, SCHEMA, 1000)
    registry.claim(second, buffer_id)
    fill(second, 5)
    assert first.committed == 5
    with pytest.raises(RegistryError, match="one writer"):
        registry.claim(first, buffer_id)


def test_a_writer_that_closed_its_ring_can_be_followed(tmp_path):
    registry = pool(tmp_path)
    buffer_id, first = join(registry, "a")
    registry.claim(first, buffer_id)
    second = registry.attach(buffer_id, TERMS, SCHEMA, 1000)
    first.close()
    registry.claim(second, buffer_id)
    fill(second, 1)
    assert second.committed == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": paired_schema({"": ((4,), "float32")}, ((1,), "float32"))}, "observation obs"),
        ({"schema": paired_schema({"": ((3,), "float64")}, ((1,), "float32"))}, "float64"),
        ({"action": MOTION.__class__(n=4)}, "action choices"),
        ({"reward": {"scale": 0.1, "clip": None, "tag": None}}, "reward scale"),
        ({"reward": {"scale": 1.0, "clip": None, "tag": "vecnormalize"}}, "reward tag"),
        ({"env": "Other-v1"}, "environment"),
    ],
)
def test_a_buffer_with_other_terms_is_refused_with_the_difference(tmp_path, change, named):
    registry = pool(tmp_path)
    plain = {"schema": SCHEMA, "action": MOTION, "env": "Pendulum-v1"}
    plain["reward"] = {"scale": 1.0, "clip": None, "tag": None}
    join(registry, "a", terms=_terms(plain))
    with pytest.raises(ConfigError, match=named):
        join(registry, "b", terms=_terms(plain | change))


def _terms(of):
    return terms_of(of["schema"], of["action"], reward=of["reward"], env=of["env"])


def test_what_only_one_side_knows_is_not_compared(tmp_path):
    registry = pool(tmp_path)
    join(registry, "a", terms=TERMS | {"environment": "Pendulum-v1"})
    _, ring = join(registry, "b", terms=TERMS)
    assert ring.capacity == 1000


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "ppo"])
def test_on_policy_algorithms_are_refused_with_the_reason(tmp_path, algorithm):
    with pytest.raises(ConfigError, match="on-policy"):
        pool(tmp_path).register_buffer(run_id="a", algorithm=algorithm)


@pytest.mark.parametrize("run_id", ["", "../a", "a b", ".a", "x" * 101])
def test_a_run_id_that_is_no_file_name_is_refused(tmp_path, run_id):
    with pytest.raises(ConfigError, match="run_id"):
        pool(tmp_path).register_buffer(run_id=run_id, algorithm="SAC")


def test_a_second_run_of_the_same_name_gets_its_own_id_and_is_told(tmp_path):
    registry = pool(tmp_path)
    first = registry.register_buffer(run_id="a", algorithm="SAC")
    with pytest.warns(UserWarning, match="in the pool already"):
        second = registry.register_buffer(run_id="a", algorithm="SAC")
    assert first != second


def test_a_buffer_larger_than_the_pool_allows_is_refused(tmp_path):
    registry = pool(tmp_path)
    with pytest.raises(ConfigError, match="max_buffer_size"):
        join(registry, "a", capacity=10_001)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [("register_buffer", ("a", "SAC")), ("deregister_buffer", ("a",)), ("list", ()), ("stats", ())],
)
def test_a_stopped_registry_names_the_call(tmp_path, call, arguments):
    registry = pool(tmp_path)
    registry.stop()
    named = "list" if call == "stats" else call
    with pytest.raises(RegistryError, match=f"{named}: .*stopped"):
        getattr(registry, call)(*arguments)


def test_a_pool_that_is_gone_is_named(tmp_path):
    registry = pool(tmp_path)
    for path in registry.path.iterdir():
        path.unlink()
    with pytest.raises(RegistryError, match=r"register_buffer: .*gone"):
        registry.register_buffer(run_id="a", algorithm="SAC")


def test_stop_removes_what_was_registered_and_the_folder(tmp_path):
    registry = pool(tmp_path)
    join(registry, "a")
    registry.stop()
    assert not registry.path.exists()


def test_stop_of_what_is_no_pool_is_nothing(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "nowhere"):
        Registry(path).stop()
    assert (tmp_path / "file").exists()


def test_stop_leaves_the_buffers_of_others(tmp_path):
    mine, theirs = pool(tmp_path), pool(tmp_path)
    kept, _ = join(theirs, "b")
    join(mine, "a")
    mine.stop()
    assert [listed.buffer_id for listed in theirs.list()] == [kept]


def test_the_end_of_a_with_block_stops_the_registry(tmp_path):
    with pool(tmp_path) as registry:
        join(registry, "a")
        assert registry.available
    assert not registry.path.exists()


def test_an_error_in_a_with_block_stops_the_registry_too(tmp_path):
    registry = pool(tmp_path)
    join(registry, "a")
    with pytest.raises(RegistryError, match="not in"), registry:
        registry.deregister_buffer("b-123456")
    assert not registry.path.exists()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_in_this_process_does_not_keep_a_stopped_pool(tmp_path, copied):
    registry = pool(tmp_path)
    join(registry, "a")
    again = copied(registry)
    assert again.available

    registry.stop()

    assert not registry.path.exists()
    assert not again.available


def test_a_copy_keeps_the_pool_for_the_buffers_that_it_has_registered(tmp_path):
    registry = pool(tmp_path)
    again = copy.deepcopy(registry)
    kept = again.register_buffer(run_id="b", algorithm="SAC")

    registry.stop()

    assert [listed.buffer_id for listed in again.list()] == [kept]
    again.stop()
    assert not registry.path.exists()


def test_a_copy_stays_open_while_another_registry_of_its_pool_is(tmp_path):
    first, second = pool(tmp_path), pool(tmp_path)
    again = copy.deepcopy(first)
    first.stop()
    assert again.available
    second.stop()
    assert not again.available


FOREIGN_IDS = ["../victim", "/tmp/victim", "a/../b-123456", "..", "", "pool", "terms", "a-12345g"]


@pytest.mark.parametrize("buffer_id", [*FOREIGN_IDS, "a-123456\n", None])
@pytest.mark.parametrize("call", ["deregister_buffer", "note", "open_ring"])
def test_an_id_that_no_buffer_can_have_reaches_no_file(tmp_path, call, buffer_id):
    registry = pool(tmp_path)
    join(registry, "a")
    for name in ("victim.json", "victim.ring"):
        (tmp_path / name).write_text("{}")
        (tmp_path / name).chmod(0o600)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(RegistryError, match=r"buffer id .* cannot be in .*register_buffer"):
        getattr(registry, call)(buffer_id)

    assert sorted(tmp_path.rglob("*")) == before


def test_neither_a_ring_nor_a_claim_is_made_for_such_an_id(tmp_path):
    registry = pool(tmp_path)
    _, ring = join(registry, "a")
    with pytest.raises(RegistryError, match="cannot be in"):
        registry.attach("../victim", TERMS, SCHEMA, 1000)
    with pytest.raises(RegistryError, match="cannot be in"):
        registry.claim(ring, "../victim")
    assert not (tmp_path / "victim.ring").exists()


def test_a_stopped_registry_can_be_started_again(tmp_path):
    registry = pool(tmp_path)
    registry.stop()
    registry.start()
    assert registry.register_buffer(run_id="a", algorithm="SAC")


def test_a_registry_is_pickled_as_its_path(tmp_path):
    registry = pool(tmp_path)
    join(registry, "a")
    assert registry.__getstate__() == {"path": str(registry.path)}
    again = pickle.loads(pickle.dumps(registry))
    assert (again.path, again.revived, len(again.list())) == (registry.path, True, 1)


def test_a_registry_pickled_before_its_pool_went_is_not_available(tmp_path):
    registry = pool(tmp_path)
    raw = pickle.dumps(registry)
    registry.stop()
    assert not pickle.loads(raw).available


def test_a_folder_that_others_can_enter_is_refused(tmp_path):
    folder = tmp_path / "pool"
    folder.mkdir(mode=0o755)
    os.chmod(folder, 0o755)
    with pytest.raises(ConfigError, match="0700"):
        create_distributed_registry(path=folder)


def test_a_ring_that_others_can_read_is_dead_to_us(tmp_path):
    registry = pool(tmp_path)
    buffer_id, ring = join(registry, "a")
    fill(ring, 10)
    os.chmod(registry.path / f"{buffer_id}.ring", 0o644)
    assert [listed.state for listed in registry.list()] == ["dead"]


def test_a_live_buffer_is_never_swept(tmp_path):
    registry = pool(tmp_path)
    buffer_id, ring = join(registry, "a")
    registry.claim(ring, buffer_id)
    assert pool(tmp_path).sweep() == ()


@pytest.mark.parametrize(
    "given", [{"max_buffer_size": "1000"}, {"max_buffer_size": None}, {"stale_s": "5"}]
)
def test_limits_of_another_type_are_refused_by_name(tmp_path, given):
    with pytest.raises(ConfigError, match=rf"{next(iter(given))}.*; give"):
        create_distributed_registry(path=tmp_path / "pool", **given)
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize("given", [{"run_id": 3}, {"run_id": None}, {"algorithm": None}])
def test_names_of_another_type_are_refused_by_name(tmp_path, given):
    with pytest.raises(ConfigError, match=rf"{next(iter(given))} is"):
        pool(tmp_path).register_buffer(**({"run_id": "a", "algorithm": "SAC"} | given))


def test_pools_without_a_path_are_apart():
    one, other = create_distributed_registry(), create_distributed_registry()
    assert one.path != other.path
    one.stop(), other.stop()


def test_a_registry_that_never_was_is_not_there(tmp_path):
    with pytest.raises(RegistryError, match="stopped"):
        Registry(tmp_path / "nowhere").list()


def test_stats_sum_up_what_the_pool_holds(tmp_path):
    registry = pool(tmp_path)
    for name, rows in (("a", 10), ("b", 30)):
        fill(join(registry, name)[1], rows)
    stats = registry.stats()
    assert (stats["num_buffers"], stats["num_lending"], stats["filled_rows"]) == (2, 2, 40)
