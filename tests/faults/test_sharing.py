"""Members of a pool are killed, stopped, forged and poisoned; the others never notice more than
that there is less to borrow."""

import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventually import eventually
from pool_buffers import SCHEMA, TERMS, borrower, fill, join, pool
from pool_member_processes import WIDE, WIDE_TERMS, Sharers, rows, sharers
from rookery.config.load import load
from rookery.config.schema import Strategy
from rookery.envs.make import make
from rookery.errors import ConfigError, RegistryError
from rookery.replay.file_owner import Owner
from rookery.replay.ring import Ring, schema_of
from rookery.sharing import borrower as borrowing
from rookery.sharing import stale_pools
from rookery.sharing.borrowed_rows import Lender, Returns
from rookery.sharing.borrower import Borrower
from rookery.sharing.pool_member import PoolMember
from rookery.sharing.registry import Registry, create_distributed_registry
from rookery.types import Array
from run_processes import SMALL, SUPPORT, reached, record, words

AT_ONCE_S = 1.0
BATCH = 64
HEADER = struct.Struct("<8sqqqqq16s")  # magic format header capacity pid started boot


@pytest.fixture(scope="module")
def _sharers() -> Iterator[Sharers]:
    with sharers() as started:
        yield started


@pytest.fixture
def peers(_sharers: Sharers, monkeypatch: pytest.MonkeyPatch) -> Sharers:
    """Starts members of pools; whoever borrows in this process looks around every time."""
    monkeypatch.setattr(borrowing, "REFRESH_S", 0.0)
    return _sharers


def buffer_ids(registry: Registry) -> set[str]:
    return {listed.buffer_id for listed in registry.list()}


def files(registry: Registry, buffer_id: str) -> list[str]:
    return sorted(path.name for path in registry.path.glob(f"{buffer_id}.*"))


# --- death


def test_the_locks_of_a_killed_peer_are_free_at_once(peers, tmp_path):
    registry = pool(tmp_path)
    peer = peers.start("hold", registry.path)
    ring = registry.attach(peer.buffer_id, TERMS, SCHEMA, 1000)
    with pytest.raises(RegistryError, match=f"pid {peer.pid}"):
        registry.claim(ring, peer.buffer_id)

    os.kill(peer.pid, signal.SIGKILL)
    begun = time.monotonic()
    peer.wait()
    registry.claim(ring, peer.buffer_id)

    assert time.monotonic() - begun < AT_ONCE_S
    fill(ring, 1)
    assert ring.committed == 101
    assert registry.sweep() == ()  # it has a living writer again


def test_the_next_registration_removes_a_killed_peer(peers, tmp_path):
    registry = pool(tmp_path)
    peer = peers.start("hold", registry.path)
    assert len(files(registry, peer.buffer_id)) == 2

    peer.kill()
    assert [listed.state for listed in registry.list()] == ["dead"]
    begun = time.monotonic()
    mine = registry.register_buffer(run_id="mine", algorithm="SAC")

    assert time.monotonic() - begun < AT_ONCE_S
    assert buffer_ids(registry) == {mine}
    assert files(registry, peer.buffer_id) == []


@pytest.mark.parametrize("seed", [0])
def test_a_peer_killed_in_the_middle_of_a_row_never_lends_half_of_one(seed, peers, tmp_path):
    """Its id is ours: writers come and go on it, and a reader borrows all the time."""
    registry, moments = pool(tmp_path), random.Random(seed)
    own_id = registry.register_buffer(run_id="own", algorithm="SAC")
    own = registry.attach(own_id, WIDE_TERMS, WIDE, 10)
    lent = registry.register_buffer(run_id="lent", algorithm="SAC")
    reader = wide_borrower(registry, own_id, own)
    gaps, drawn, slowest, kills = np.zeros(0, dtype=np.int64), 0, 0.0, 0
    while kills < 30 or gaps.size == 0:
        peer = peers.start("write", registry.path, buffer_id=lent)
        ring = registry.open_ring(lent)
        before, until = ring.committed, time.monotonic() + moments.uniform(0.005, 0.03)
        while time.monotonic() < until or ring.committed == before:
            begun = time.monotonic()
            taken = borrowed_whole(reader, ring, gaps)
            if drawn:  # the first loan compiles the copy, once on every machine
                slowest = max(slowest, time.monotonic() - begun)
            drawn += taken
        peer.kill()
        kills += 1
        gaps = np.concatenate([gaps, np.arange(ring.committed, ring.reserved)])
        assert borrowed_whole(reader, ring, gaps) > 0  # a dead writer leaves a readable ring
        ring.close()
        assert kills < 300

    assert drawn > 10_000
    assert slowest < AT_ONCE_S


def wide_borrower(registry: Registry, buffer_id: str, ring: Ring) -> Borrower:
    columns = {column.name: column for column in WIDE}
    return Borrower(
        registry,
        buffer_id,
        [Lender(buffer_id, ring)],
        [columns["obs"]],
        columns["action"],
        strategy=Strategy.SELF_HEAVY,
        ratio=1.0,
        seed=0,
    )


def borrowed_whole(reader: Borrower, ring: Ring, gaps: Array) -> int:
    """Borrows a batch, and asserts that every row of it is one that was written to its end."""
    oldest = ring.oldest
    loan = reader.borrow(BATCH)
    if loan is None:
        return 0
    count = loan.filled
    number = loan.action[:count, 0].astype(int)
    expected = rows(number)
    assert np.array_equal(loan.obs[""][:count], expected["obs"])
    assert np.array_equal(loan.next_obs[""][:count], expected["next_obs"])
    assert np.array_equal(loan.reward[:count] % 1_000, expected["reward"])
    there = gaps[gaps >= oldest] % 10_000
    assert not np.isin(number, there).any(), "a row of a dead writer's gap was lent"
    return count


def test_borrowing_goes_on_while_peers_die(peers, tmp_path):
    registry = pool(tmp_path)
    own_id, own = join(registry, "own")
    _, steady = join(registry, "steady")
    fill(steady, 100, 2.0)
    reader, moments, waits = borrower(registry, own_id, own, ratio=1.0), random.Random(0), []
    assert reader.borrow(BATCH).filled == BATCH  # compiles the copy, once on every machine
    dying = [peers.start("hold", registry.path) for _ in range(8)]
    for peer in dying:
        until = time.monotonic() + moments.uniform(0.0, 0.02)
        os.kill(peer.pid, signal.SIGKILL)
        while time.monotonic() < until or not waits:
            begun = time.monotonic()
            loan = reader.borrow(BATCH)
            waits.append(time.monotonic() - begun)
            assert loan.filled == BATCH
    for peer in dying:
        peer.wait()
    registry.sweep()

    assert reader.borrow(BATCH).filled == BATCH
    assert reader.counts.stats()["num_shared_buffers"] == 1
    assert reader.counts.stats()["refused"] == {}
    assert max(waits) < AT_ONCE_S
    assert np.median(waits) < 0.05


def test_leftovers_of_a_killed_group_go_and_the_living_stay(peers, tmp_path):
    registry = pool(tmp_path)
    alive = peers.start("hold", registry.path)
    first = peers.start("hold", registry.path, group=0)
    group = [first, *(peers.start("hold", registry.path, group=first.pid) for _ in range(3))]

    os.killpg(first.pid, signal.SIGKILL)
    for peer in group:
        peer.wait()
    would = {left.buffer_id for left in stale_pools.find(registry.path)}
    assert would == {peer.buffer_id for peer in group}
    assert {alive.buffer_id, *would} == buffer_ids(registry)  # looking removes nothing
    mine = registry.register_buffer(run_id="mine", algorithm="SAC")

    assert buffer_ids(registry) == {mine, alive.buffer_id}
    assert len(files(registry, alive.buffer_id)) == 2
    alive.kill()


def test_clean_says_what_it_would_remove_and_then_removes_only_that(peers, tmp_path):
    home = tmp_path / f"rookery-{os.getuid()}"
    busy, deserted = (create_distributed_registry(path=home / name) for name in ("busy", "left"))
    alive, dead = peers.start("hold", busy.path), peers.start("hold", busy.path)
    last = peers.start("hold", deserted.path)
    dead.kill(), last.kill()
    deserted._let_go()  # as if whoever made it had died too
    expected = {
        *(str(busy.path / name) for name in files(busy, dead.buffer_id)),
        *(str(deserted.path / name) for name in files(deserted, last.buffer_id)),
        str(deserted.path),
    }

    look = clean(tmp_path, "--dry-run")
    assert {item["path"] for item in look} == expected
    assert all(Path(path).exists() for path in expected)
    assert clean(tmp_path) == look

    assert not any(Path(path).exists() for path in expected)
    assert buffer_ids(busy) == {alive.buffer_id}
    assert len(files(busy, alive.buffer_id)) == 2
    assert clean(tmp_path) == []
    alive.kill()


CLEAN = """
import sys
from pathlib import Path
import rookery.sharing.registry
from rookery.cli.main import main
home = Path(sys.argv.pop())
rookery.sharing.registry.default_directory = lambda: home
sys.exit(main())
"""


def clean(home: Path, *words: str) -> list[dict[str, Any]]:
    """Runs `rookery clean` where shared memory is another folder."""
    line = [sys.executable, "-c", CLEAN, "clean", "--json", *words, str(home)]
    done = subprocess.run(line, cwd=home, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    removed: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["removed"]
    return removed


VISIT = """
import sys
from multiprocessing import resource_tracker
from pathlib import Path
from pool_buffers import SCHEMA, TERMS
from rookery.sharing.registry import create_distributed_registry
registry = create_distributed_registry(path=Path(sys.argv[1]))
for listed in registry.list():
    ring = registry.attach(listed.buffer_id, TERMS, SCHEMA, 1000)
    assert ring.columns["reward"][:10].sum() >= 0
    registry.open_ring(listed.buffer_id)
if sys.argv[2] == "stop":
    registry.stop()
"""


@pytest.mark.parametrize("end", ["stop", "just exit"])
def test_a_process_that_attaches_and_exits_leaves_the_pool_in_place(end, peers, tmp_path):
    registry = pool(tmp_path)
    peer = peers.start("hold", registry.path)
    own_id, own = join(registry, "own")
    before = sorted(registry.path.iterdir())

    line = [sys.executable, "-c", VISIT, str(registry.path), end]
    path = {"PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(line, env=os.environ | path, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(registry.path.iterdir()) == before
    assert borrower(registry, own_id, own, ratio=1.0).borrow(BATCH).filled == BATCH
    assert {listed.state for listed in registry.list()} == {"lending", "reserved"}
    peer.kill()


def test_a_stopped_peer_is_ignored_while_it_is_silent_and_comes_back(peers, tmp_path):
    registry = pool(tmp_path, stale_s=0.3)
    own_id = registry.register_buffer(run_id="own", algorithm="SAC")
    own = registry.attach(own_id, WIDE_TERMS, WIDE, 10)
    peer = peers.start("write", registry.path)
    reader = wide_borrower(registry, own_id, own)
    assert eventually(lambda: lends(reader), 5.0)

    os.kill(peer.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    assert lends(reader)  # silence is no death
    assert eventually(lambda: not lends(reader), 5.0)
    assert time.monotonic() - stopped >= 0.3 - 0.05
    assert peer.buffer_id in buffer_ids(registry)
    assert registry.sweep() == ()
    os.kill(peer.pid, signal.SIGCONT)
    assert eventually(lambda: lends(reader), 5.0)
    peer.kill()


def lends(reader: Borrower) -> bool:
    return reader.borrow(BATCH) is not None


def test_a_run_outlives_the_one_it_borrows_from_and_leaves_nothing_of_either(forker, tmp_path):
    argv = ["train", "corridor", "--json", "--quiet"]
    pooled = SMALL | {"sharing.pool": tmp_path / "pool", "run.env_steps": 10_000_000}
    lender = forker.start([*argv, "--run-dir", "lender", *words(pooled)], tmp_path)
    assert eventually(lambda: reached(tmp_path / "lender", 1_000), 60.0), lender.said
    run = forker.start(
        [*argv, "--run-dir", "run", *words(pooled | {"run.env_steps": 6_000})], tmp_path
    )
    assert eventually(lambda: reached(tmp_path / "run", 1_000), 60.0), run.said

    lender.kill_all()

    assert run.wait() == 0, run.said
    last = record(tmp_path / "run", "logged")[-1]["metrics"]
    assert last["sharing/foreign_rows"] > 0
    assert last["sharing/refused"] == 0
    assert not (tmp_path / "pool").exists()


# --- forgery


def forge_owner(registry: Registry, buffer_id: str, owner: Owner) -> None:
    """Makes the note and the ring of a buffer say that they are somebody's."""
    note = registry.path / f"{buffer_id}.json"
    said = json.loads(note.read_text()) | {"owner": [owner.pid, owner.started, owner.boot.hex()]}
    note.write_text(json.dumps(said))
    with open(registry.path / f"{buffer_id}.ring", "r+b") as file:
        head = HEADER.unpack(file.read(HEADER.size))
        file.seek(0)
        file.write(HEADER.pack(*head[:4], *owner))


def forsaken(registry: Registry, name: str) -> str:
    """Returns a buffer without a lock, although its owner lives."""
    buffer_id, ring = join(registry, name)
    fill(ring, 10)
    ring.close()
    os.close(registry._held.pop(buffer_id))
    return buffer_id


def test_a_reused_pid_is_not_mistaken_for_a_live_owner(tmp_path):
    registry = pool(tmp_path)
    reused, alive = forsaken(registry, "reused"), forsaken(registry, "alive")
    this = Owner.this()
    forge_owner(registry, reused, this._replace(started=this.started - 1))
    forge_owner(registry, alive, this)

    assert registry.sweep() == (reused,)
    assert buffer_ids(registry) == {alive}


def test_a_buffer_of_an_earlier_boot_is_removed(tmp_path):
    registry = pool(tmp_path)
    before = forsaken(registry, "before")
    forge_owner(registry, before, Owner.this()._replace(boot=bytes(range(16))))

    assert registry.sweep() == (before,)


@pytest.mark.parametrize("locked", ["note", "ring"])
def test_what_is_locked_is_alive_whatever_its_pid_says(locked, tmp_path):
    """A pid of another container means nothing here; its locks do."""
    registry = pool(tmp_path)
    buffer_id, ring = join(registry, "far")
    if locked == "ring":
        os.close(registry._held.pop(buffer_id))
        registry.claim(ring, buffer_id)
    fill(ring, 10)
    forge_owner(registry, buffer_id, Owner(2**22 + 1, 1, bytes(16)))

    assert registry.sweep() == ()
    assert [listed.state for listed in registry.list()] == ["lending"]
    assert list(stale_pools.find(registry.path)) == []
    ring.close()
    if locked == "note":
        os.close(registry._held.pop(buffer_id))
    assert registry.sweep() == (buffer_id,)


def test_an_id_cannot_be_claimed_once_it_is_removed(tmp_path):
    registry = pool(tmp_path)
    buffer_id, ring = join(registry, "late")
    pool(tmp_path).deregister_buffer(buffer_id)

    with pytest.raises(RegistryError, match="was removed from"):
        registry.claim(ring, buffer_id)


# --- space


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A /dev/shm as docker makes it, only smaller."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def free(disk: Path) -> int:
    return os.statvfs(disk).f_bfree


def use_up(disk: Path) -> Path:
    """Takes all space there is."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def test_a_ring_that_does_not_fit_is_refused_and_leaves_nothing(small):
    registry = create_distributed_registry(path=small / "pool")
    buffer_id = registry.register_buffer(run_id="a", algorithm="SAC")
    _, fitting = join(registry, "b", capacity=100)
    before, names = free(small), sorted(os.listdir(registry.path))

    with pytest.raises(ConfigError, match=r"does not fit into .*pool .*free\); lower"):
        registry.attach(buffer_id, TERMS, SCHEMA, 100_000)

    assert (free(small), sorted(os.listdir(registry.path))) == (before, names)
    use_up(small)
    fill(fitting, 100)  # its space was taken when it was made: no SIGBUS
    registry.stop()
    assert not registry.path.exists()


def test_on_a_full_disk_nothing_is_begun_and_nothing_is_left(small):
    registry = create_distributed_registry(path=small / "pool")
    names = sorted(os.listdir(registry.path))
    ballast = use_up(small)

    with pytest.raises(ConfigError, match="free some space"):
        registry.register_buffer(run_id="a", algorithm="SAC")
    assert sorted(os.listdir(registry.path)) == names
    with pytest.raises(ConfigError, match="free some space"):
        create_distributed_registry(path=small / "other")
    assert sorted(os.listdir(small)) == ["ballast", "pool"]

    ballast.unlink()
    assert registry.register_buffer(run_id="a", algorithm="SAC")


CROWDED = """
import os, sys
from pool_buffers import SCHEMA, TERMS
from rookery.errors import ConfigError
from rookery.sharing.registry import create_distributed_registry
registry = create_distributed_registry(path=None)
assert str(registry.path).startswith("/dev/shm/")
buffer_id = registry.register_buffer(run_id="a", algorithm="SAC")
try:
    registry.attach(buffer_id, TERMS, SCHEMA, 100_000)
except ConfigError as error:
    print(error)
registry.stop()
print(sorted(os.listdir(registry.path.parent)))
"""


def test_a_small_dev_shm_is_a_clear_error(tmp_path):
    script = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    line = ["unshare", "--mount", "bash", "-c", script, "-", sys.executable, "-c", CROWDED]
    probe = subprocess.run([*line[:4], "mount -t tmpfs tmpfs /dev/shm"], capture_output=True)
    if probe.returncode:
        pytest.skip("needs a mount namespace of its own")

    path = {"PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(line, env=os.environ | path, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr  # -7 would be a SIGBUS
    said, left = done.stdout.splitlines()
    assert "docker: --shm-size" in said
    assert left == "[]"


# --- strangers


def test_peers_may_have_another_gamma_and_n_step(tmp_path):
    members = [corridor_member(tmp_path, f"m{n}", n_step=n, gamma=1 - n / 10) for n in (1, 3)]
    spec = members[0].spec
    rings = [member.ring(0, schema_of(spec), 100) for member in members]
    for ring in rings:
        ring.append({"reward": np.ones(50), "next": np.ones(50), "version": np.zeros(50)})
    for member in members:
        member.beat()

    for member, expected in zip(members, (1.0, 1 + 0.7 + 0.49), strict=True):
        algo = member.config.algo
        loan = member.borrower.borrow(10, Returns(algo.n_step, algo.gamma))
        assert loan.filled == 10
        assert loan.reward == pytest.approx(expected)
    for member in members:
        member.close()


def corridor_member(folder: Path, name: str, **algo: Any) -> PoolMember:
    config = load("corridor")
    sharing = replace(config.sharing, pool=str(folder / "pool"), cross_sample_ratio=1.0)
    config = replace(config, sharing=sharing, algo=replace(config.algo, **algo))
    envs = make(config.env, 1)
    spec = envs.spec
    envs.close()
    return PoolMember(config, spec, name)


def test_a_buffer_of_another_ring_format_is_refused(tmp_path):
    registry = pool(tmp_path)
    join(registry, "a")

    with pytest.raises(ConfigError, match="ring format: this buffer has 2, the pool has 1"):
        join(registry, "b", terms=TERMS | {"ring format": 2})


def test_a_pool_of_another_format_is_refused(tmp_path):
    registry = pool(tmp_path)
    about = json.loads((registry.path / "pool.json").read_text())
    (registry.path / "pool.json").write_text(json.dumps(about | {"format": 2}))

    with pytest.raises(ConfigError, match="format 2, this release reads 1"):
        pool(tmp_path)


def _symlink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _cut(path: Path) -> None:
    os.truncate(path, 6000)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _readable(path: Path) -> None:
    path.chmod(0o644)


def _foreign(path: Path) -> None:
    try:
        os.chown(path, 65534, 65534)
    except PermissionError:
        pytest.skip("only root can give files away")


def _written(at: int, raw: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(raw)

    return damage


def _text(text: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_text(text)

    return damage


def _columnless(path: Path) -> None:
    """Puts a ring there that is whole, and has not what a borrower reads."""
    path.unlink()
    columns = [column for column in SCHEMA if column.name != "reward"]
    Ring.create(tuple(columns), 10, directory=path.parent, name=path.name).close()


ANYTHING: dict[str, Callable[[Path], None]] = {
    "a symlink": _symlink,
    "a folder": _folder,
    "a pipe": _pipe,
    "empty": _empty,
    "readable by others": _readable,
    "somebody else's": _foreign,
}
BAD_RINGS = ANYTHING | {
    "cut off": _cut,
    "of another format": _written(8, struct.pack("<q", 2)),
    "without its mark": _written(0, b"NOTARING"),
    "with a header of nonsense": _written(16, bytes(range(200, 256))),
    "with a capacity beyond all memory": _written(24, struct.pack("<q", 2**62)),
    "with a capacity below nothing": _written(24, struct.pack("<q", -5)),
    "with a schema of nonsense": _written(512, b"[[[[[[[["),
    "with too few columns": _columnless,
}
BAD_NOTES = ANYTHING | {
    "garbage": _text("\x00{]"),
    "a list": _text("[1, 2]"),
    "a number": _text("7"),
    "deep": _text("[" * 100_000),
    "without an owner": _text("{}"),
    "of an owner of nonsense": _text('{"owner": ["../1", null, "zz"]}'),
}
BAD = [(".ring", name) for name in BAD_RINGS] + [(".json", name) for name in BAD_NOTES]


@pytest.mark.parametrize(("kind", "name"), BAD)
def test_files_that_are_not_what_they_should_be_are_ignored(kind, name, tmp_path, monkeypatch):
    monkeypatch.setattr(borrowing, "REFRESH_S", 0.0)
    registry = pool(tmp_path)
    own_id, own = join(registry, "own")
    (bad, ring), (_, good) = join(registry, "bad"), join(registry, "good")
    fill(ring, 50, 1.0)
    fill(good, 50, 2.0)
    ring.close()
    (BAD_RINGS if kind == ".ring" else BAD_NOTES)[name](registry.path / f"{bad}{kind}")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reader = borrower(registry, own_id, own, ratio=1.0)
        loans = [reader.borrow(BATCH) for _ in range(3)]
        listed = {each.run_id: each.state for each in registry.list()}
        swept = registry.sweep()
        registry.stats()
        registry.register_buffer(run_id="new", algorithm="SAC")

    assert swept == ()  # its owner is unknown
    assert listed["good"] == "lending"
    known = name in ("without an owner", "of an owner of nonsense")  # its ring is good
    marks = {mark for loan in loans for mark in loan.action[: loan.filled, 0]}
    assert marks == ({1.0, 2.0} if known else {2.0})
    assert list(reader.counts.stats()["refused"]) == ([] if known else [bad])
    assert len(said) == (0 if known else 1)
    assert listed.get("bad") != "lending"


def test_files_that_are_no_buffers_at_all_are_nobodys_business(tmp_path):
    registry = pool(tmp_path)
    join(registry, "own")
    strays = [registry.path / name for name in ("stray.ring", "README", "x.json", "y.ring")]
    strays[0].write_bytes(os.urandom(10_000))
    strays[1].write_text("hello")
    strays[2].write_text("{")
    strays[3].mkdir()

    assert registry.sweep() == ()
    assert [listed.run_id for listed in registry.list()] == ["own"]
    registry.stop()
    assert all(path.exists() for path in strays)


# --- poison


def test_a_run_beside_a_poisoning_peer_trains_on_and_says_so(forker, tmp_path):
    poison = corridor_member(tmp_path, "poison")
    ring = poison.ring(0, schema_of(poison.spec), 1000)
    ring.append({"reward": np.full(500, np.nan), "next": np.ones(500), "version": np.zeros(500)})
    poison.beat()

    argv = ["train", "corridor", "--json", "--quiet", "--run-dir", "run"]
    pooled = {"sharing.pool": tmp_path / "pool", "run.env_steps": 2_000}
    run = forker.start([*argv, *words(SMALL | pooled)], tmp_path)

    assert run.wait() == 0, run.said
    assert "is not read: it has rows that are not finite" in run.said
    last = record(tmp_path / "run", "logged")[-1]["metrics"]
    assert (last["sharing/refused"], last["sharing/foreign_rows"]) == (1, 0)
    assert last["sharing/local_rows"] > 0
    assert [listed.run_id for listed in poison.registry.list()] == ["poison"]
    poison.close()
