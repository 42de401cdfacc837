"""A ring: one writer, any number of readers, and files that are refused or gone."""

import os
import resource
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rookery.errors import ClosedError, ConfigError, ProtocolError
from rookery.replay import fold
from rookery.replay.file_owner import Owner
from rookery.replay.fold import Chains
from rookery.replay.ring import Column, Ring, row_bytes, schema_of
from rookery.replay.shared_arrays import allocate
from rookery.types import End
from sample_experience import VECTOR, Move, columns, feed, play

SCHEMA = schema_of(VECTOR)
RUN = [(0, 0, Move.RUN)]


@pytest.fixture
def ring() -> Iterator[Ring]:
    with closing(Ring.create(SCHEMA, 8)) as ring:
        yield ring


@pytest.fixture
def named(tmp_path: Path) -> Iterator[Path]:
    with closing(Ring.create(SCHEMA, 8, directory=tmp_path / "shared", name="a.ring")) as ring:
        ring.append(columns(VECTOR, play(RUN * 5), 0))
        yield tmp_path / "shared" / "a.ring"


def linked(ring: Ring) -> Chains:
    return Chains(1, 1, window=1, stride=1, capacity=ring.capacity)


class TestLayout:
    def test_columns_have_their_shape_and_dtype_and_do_not_overlap(self) -> None:
        schema = (Column("obs", (3, 2), "uint8"), Column("action", (2,), "float32"), *SCHEMA[2:])
        with closing(Ring.create(schema, 5)) as ring:
            for k, column in enumerate(ring.columns.values()):
                column[:] = k + 1

            for k, (column, array) in enumerate(zip(schema, ring.columns.values(), strict=True)):
                assert (array.shape, array.dtype) == ((5, *column.shape), column.dtype)
                assert (array == k + 1).all()

    def test_every_column_begins_on_its_own_cache_line(self, ring: Ring) -> None:
        assert not (ring.offsets % 64).any()
        assert (np.diff(ring.offsets) >= ring.widths[:-1] * ring.capacity).all()

    def test_a_schema_longer_than_a_page_is_read_back(self) -> None:
        schema = (*(Column(f"obs.{k:050}", (1,), "int64") for k in range(90)), *SCHEMA[1:])
        with closing(Ring.create(schema, 3)) as ring:
            assert Ring.from_fd(os.dup(ring.fd)).schema == schema

    def test_row_bytes_adds_up_what_a_row_takes(self) -> None:
        assert row_bytes(SCHEMA) == 2 * 4 + 8 + 4 + 1 + 3 * 4 + 8 + 4 + 8 + 2 * 4 + 2 * 4


class TestWriting:
    def test_columns_that_are_not_given_are_zero(self, ring: Ring) -> None:
        ring.columns["version"][:] = 7

        ring.append({"reward": np.ones(3)})

        assert ring.columns["version"].tolist() == [0, 0, 0, 7, 7, 7, 7, 7]

    def test_more_rows_than_there_are_slots_are_refused_and_nothing_changes(
        self, ring: Ring
    ) -> None:
        with pytest.raises(ProtocolError, match="9 rows do not fit into a ring of 8"):
            ring.append({"reward": np.ones(9)})

        assert (ring.reserved, ring.committed) == (0, 0)

    def test_rows_are_reserved_before_they_are_written_and_committed_after(
        self, ring: Ring
    ) -> None:
        with ring.writing(3):
            assert (ring.reserved, ring.committed) == (3, 0)

        assert (ring.reserved, ring.committed) == (3, 3)

    def test_rows_about_to_be_overwritten_are_not_readable(self, ring: Ring) -> None:
        ring.append({"reward": np.ones(8)})

        with ring.writing(3):
            assert ring.oldest == 3

    def test_what_an_exception_leaves_half_written_is_never_drawn(self, ring: Ring) -> None:
        chains = linked(ring)
        feed(ring, chains, VECTOR, play(RUN * 2))

        with pytest.raises(ValueError, match="broadcast"):
            ring.append(columns(VECTOR, play(RUN * 3), 2) | {"t": np.zeros(2)})
        first = ring.committed
        ring.append(columns(VECTOR, play([(0, 0, Move.LOSE), *RUN * 3]), first))
        chains.link(ring, first, 3)

        assert first == 5
        assert fold.is_closed(ring, np.arange(8), 1).tolist() == [
            *(True, False),  # row 1 waits for its next row, which will never come
            *(False, False, False),
            *(True, True, False),
        ]

    def test_a_half_written_row_on_its_way_to_replay_is_joined_to_nothing(self) -> None:
        with (
            closing(Ring.create(SCHEMA, 8)) as transport,
            closing(Ring.create(SCHEMA, 8)) as replay,
        ):
            chains = linked(replay)
            transport.append(columns(VECTOR, play(RUN), 0))
            with pytest.raises(KeyboardInterrupt), transport.writing(1):
                raise KeyboardInterrupt
            first, count = replay.drain_from(transport)

            assert chains.link(replay, first, count).closed.tolist() == []


class TestAdoption:
    def test_the_gap_of_a_dead_writer_is_never_a_start_and_never_an_end(self, ring: Ring) -> None:
        feed(ring, linked(ring), VECTOR, play(RUN * 3))
        ring.reserve(2)  # and the writer dies, its last link already written
        ring.columns["next"][2] = 1
        ring.columns["next"][3] = 1

        ring.adopt()

        assert (ring.reserved, ring.committed) == (5, 5)
        assert fold.is_closed(ring, np.arange(5), 1).tolist() == [True, True, False, False, False]
        assert ring.columns["end"][[3, 4]].tolist() == [End.TRUNCATED] * 2

    def test_a_gap_may_wrap_and_older_rows_stay(self, ring: Ring) -> None:
        feed(ring, linked(ring), VECTOR, play(RUN * 6))
        ring.reserve(4)

        ring.adopt()

        rows = np.arange(ring.oldest, ring.committed)
        assert rows.tolist() == list(range(2, 10))
        assert fold.is_closed(ring, rows, 1).tolist() == [True, True, True, *[False] * 5]

    def test_the_next_writer_goes_on_after_the_gap(self, ring: Ring) -> None:
        ring.reserve(2)
        ring.adopt()

        feed(ring, linked(ring), VECTOR, play(RUN * 3))

        assert fold.is_closed(ring, np.arange(5), 1).tolist() == [False, False, True, True, False]

    def test_the_owner_is_the_last_process_that_adopted_it(self, named: Path) -> None:
        writer = Ring.from_fd(os.open(named, os.O_RDWR))
        struct.pack_into("<q", writer._map, 32, 999_999_999)  # somebody who is not there
        reader = Ring.open(named)
        assert not reader.owner.alive

        writer.adopt()

        assert reader.owner == Owner.this()
        reader.close()
        writer.close()


class TestNames:
    def test_a_private_ring_has_no_name_and_is_inherited_by_descriptor(
        self, tmp_path: Path
    ) -> None:
        with closing(Ring.create(SCHEMA, 8, directory=tmp_path)) as ring:
            ring.append(columns(VECTOR, play(RUN * 3), 0))
            twin = Ring.from_fd(os.dup(ring.fd))

            assert list(tmp_path.iterdir()) == []
            assert twin.committed == 3
            assert twin.columns["obs"][2].tolist() == ring.columns["obs"][2].tolist()
            twin.close()

    def test_a_named_ring_is_for_its_user_alone(self, named: Path) -> None:
        assert stat.S_IMODE(named.stat().st_mode) == 0o600
        assert stat.S_IMODE(named.parent.stat().st_mode) == 0o700

    def test_a_name_is_taken_once(self, named: Path) -> None:
        with pytest.raises(FileExistsError):
            Ring.create(SCHEMA, 8, directory=named.parent, name=named.name)

    def test_another_run_sees_rows_and_cannot_write(self, named: Path) -> None:
        with closing(Ring.open(named)) as peer:
            assert peer.committed == 5
            assert peer.columns["version"][:5].tolist() == [0, 1, 2, 3, 4]
            with pytest.raises(ValueError, match="read-only"):
                peer.columns["version"][0] = 9

    def test_a_heartbeat_ends_the_silence(self, ring: Ring) -> None:
        before = ring.silence_s

        ring.beat()

        assert before > ring.silence_s >= 0.0
        assert ring.silence_s < 5.0

    def test_closing_twice_is_refused(self) -> None:
        ring = Ring.create(SCHEMA, 8)
        ring.close()

        with pytest.raises(ClosedError, match="closed before"):
            ring.close()

    def test_closing_gives_the_descriptor_back(self) -> None:
        ring = Ring.create(SCHEMA, 8)
        fd = ring.fd
        ring.close()

        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


class TestRefusals:
    @pytest.mark.parametrize(
        ("at", "bytes_", "message"),
        [
            (0, b"RECKRING", "does not begin with the ring's mark"),
            (8, struct.pack("<q", 2), "format 2 was written by another release"),
            (16, struct.pack("<q", 0), "header is damaged"),
            (16, struct.pack("<q", 1 << 40), "header is damaged"),
            (24, struct.pack("<q", 0), "header is damaged"),
            (24, struct.pack("<q", -8), "header is damaged"),
            (24, struct.pack("<q", 9000), "header is damaged"),
            (72, struct.pack("<q", 3), "checksum does not match"),
            (72, struct.pack("<q", -1), "checksum does not match"),
            (80, b"\0" * 32, "checksum does not match"),
            (520, b"?", "checksum does not match"),
        ],
    )
    def test_a_damaged_file_is_refused(
        self, named: Path, at: int, bytes_: bytes, message: str
    ) -> None:
        fd = os.open(named, os.O_RDWR)
        os.pwrite(fd, bytes_, at)
        os.close(fd)

        with pytest.raises(ProtocolError, match=message):
            Ring.open(named)

    @pytest.mark.parametrize("size", [0, 100, 4095])
    def test_a_file_too_short_for_a_header_is_refused(self, tmp_path: Path, size: int) -> None:
        path = tmp_path / "short.ring"
        path.write_bytes(b"ROOKRING".ljust(size, b"\0")[:size])

        with pytest.raises(ProtocolError, match=f"the file has {size} bytes"):
            Ring.open(path)

    def test_a_file_that_lost_its_end_is_refused(self, named: Path) -> None:
        os.truncate(named, named.stat().st_size - 64)

        with pytest.raises(ProtocolError, match="header is damaged"):
            Ring.open(named)

    def test_a_refused_file_is_not_kept_open(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.ring"
        path.touch()

        with pytest.raises(ProtocolError):
            Ring.open(path)

        held = [os.path.realpath(entry.path) for entry in os.scandir("/proc/self/fd")]
        assert str(path.resolve()) not in held

    @pytest.mark.parametrize("capacity", [0, -1])
    def test_a_ring_without_rows_is_refused(self, tmp_path: Path, capacity: int) -> None:
        with pytest.raises(ConfigError, match="at least one row"):
            Ring.create(SCHEMA, capacity, directory=tmp_path, name="none.ring")

        assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A /dev/shm as docker makes it, only smaller."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a tmpfs needs root: {error}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.fixture
def small_files() -> Iterator[None]:
    """The kernel's limit on file sizes: the same error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def private(directory: Path) -> Ring:
    return Ring.create(SCHEMA, 100_000, directory=directory)


def public(directory: Path) -> Ring:
    return Ring.create(SCHEMA, 100_000, directory=directory, name="large.ring")


@pytest.mark.parametrize("create", [private, public])
class TestNoSpace:
    def test_a_full_shared_memory_is_an_error_and_leaves_nothing(
        self, small_tmpfs: Path, create: Callable[[Path], Ring]
    ) -> None:
        with pytest.raises(ConfigError, match=r"ring of 7 MB .* \(1 MB free\); lower replay.capa"):
            create(small_tmpfs)

        assert list(small_tmpfs.iterdir()) == []
        assert os.statvfs(small_tmpfs).f_bfree == os.statvfs(small_tmpfs).f_blocks

    def test_a_limit_on_file_size_is_an_error_and_leaves_nothing(
        self, small_files: None, tmp_path: Path, create: Callable[[Path], Ring]
    ) -> None:
        with pytest.raises(ConfigError, match=r"ring of 7 MB does not fit"):
            create(tmp_path)

        assert list(tmp_path.iterdir()) == []


def test_all_space_is_taken_at_once(small_tmpfs: Path) -> None:
    with closing(Ring.create(SCHEMA, 8_000, directory=small_tmpfs)) as ring:
        free = os.statvfs(small_tmpfs)

        assert (free.f_blocks - free.f_bfree) * free.f_frsize >= 8_000 * row_bytes(SCHEMA)
        ring.bytes[4096:] = 1  # no SIGBUS


def test_other_failures_to_allocate_are_raised_as_they_are(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)

    with pytest.raises(OSError, match="Bad file descriptor"):
        allocate(fd, 100, tmp_path, what="a ring")
    os.close(fd)


class TestDraining:
    def test_rows_are_committed_when_their_links_are_there(self, ring: Ring) -> None:
        with closing(Ring.create(SCHEMA, 4)) as transport:
            transport.append(columns(VECTOR, play(RUN * 3), 0))

            first, count = ring.drain_from(transport)
            assert (first, count, ring.reserved, ring.committed) == (0, 3, 3, 0)

            linked(ring).link(ring, first, count)
            assert (ring.committed, transport.consumed, transport.free) == (3, 3, 4)

    def test_a_capacity_at_a_time_where_replay_is_smaller(self) -> None:
        with (
            closing(Ring.create(SCHEMA, 10)) as transport,
            closing(Ring.create(SCHEMA, 4)) as replay,
        ):
            chains = linked(replay)
            transport.append(columns(VECTOR, play(RUN * 10), 0))
            counts = []
            for _ in range(4):
                first, count = replay.drain_from(transport)
                chains.link(replay, first, count)
                counts.append(count)

            assert counts == [4, 4, 2, 0]
            assert sorted(replay.columns["version"].tolist()) == [6, 7, 8, 9]
