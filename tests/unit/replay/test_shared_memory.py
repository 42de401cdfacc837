"""Counters in shared memory: real atomic instructions, in the code that is really emitted."""

import platform
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit

from rookery.replay import ring
from rookery.replay.ring import Ring, schema_of
from rookery.replay.shared_memory import address, copy, load, look, post, store
from sample_experience import VECTOR, Move, columns, play

ATOMIC_LOAD = r"load atomic i64, .* acquire, align 8"
ATOMIC_STORE = r"store atomic i64 .* release, align 8"
FENCE = r"fence seq_cst"


@njit
def move(target, to, source, at, count):  # type: ignore[no-untyped-def]
    copy(address(target) + to, address(source) + at, count)


def emitted(function: Any, *args: Any) -> str:
    """Compiles a kernel anew, calls it, and returns its optimised code."""
    fresh = njit(nogil=True)(function.py_func)
    fresh(*args)
    return str(fresh.inspect_llvm(fresh.signatures[0]))


def words() -> Any:
    return np.zeros(4, dtype=np.int64)


def test_a_posted_counter_is_seen_by_a_look() -> None:
    counters = words()

    post(counters, 2, 1 << 60)

    assert look(counters, 2) == 1 << 60
    assert counters.tolist() == [0, 0, 1 << 60, 0]


def test_a_look_is_an_atomic_load_behind_a_fence() -> None:
    code = emitted(look, words(), 1)

    fence, loaded = re.search(FENCE, code), re.search(ATOMIC_LOAD, code)
    assert fence is not None
    assert loaded is not None
    assert fence.start() < loaded.start()


def test_a_post_is_an_atomic_store_before_a_fence() -> None:
    code = emitted(post, words(), 1, 5)

    stored, fence = re.search(ATOMIC_STORE, code), re.search(FENCE, code)
    assert stored is not None
    assert fence is not None
    assert stored.start() < fence.start()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instructions of x86-64")
@pytest.mark.parametrize(("function", "args"), [(look, (1,)), (post, (1, 5))])
def test_the_processor_gets_a_fence(function: Callable[..., Any], args: tuple[int, ...]) -> None:
    fresh = njit(nogil=True)(function.py_func)  # type: ignore[attr-defined]
    fresh(words(), *args)

    assert re.search(r"\bmfence\b|\block\b", fresh.inspect_asm(fresh.signatures[0]))


def test_a_second_look_is_not_folded_into_the_first() -> None:
    @njit(nogil=True)
    def atomic(counters):  # type: ignore[no-untyped-def]
        before = load(address(counters))
        return load(address(counters)) - before

    @njit(nogil=True)
    def plain(counters):  # type: ignore[no-untyped-def]
        before = counters[0]
        return counters[0] - before

    codes = {}
    for kernel in (atomic, plain):
        kernel(words())
        codes[kernel] = kernel.inspect_llvm(kernel.signatures[0])

    assert len(re.findall(ATOMIC_LOAD, codes[atomic])) >= 2
    assert not re.search(r"sub (nsw )?i64", codes[plain])  # the trap: it was taken for 0


def test_a_drain_looks_and_posts_with_the_same_instructions() -> None:
    schema = schema_of(VECTOR)
    target, source = Ring.create(schema, 8), Ring.create(schema, 8)
    source.append(columns(VECTOR, play([(0, 0, Move.RUN)] * 3), 0))

    code = emitted(
        ring._drain,
        *(target.bytes, target.layout),
        *(source.bytes, source.layout),
    )

    assert len(re.findall(rf"{FENCE}\n.*{ATOMIC_LOAD}", code)) == 3
    assert len(re.findall(rf"{ATOMIC_STORE}\n.*{FENCE}", code)) == 2
    assert re.search(r"call void @llvm.memcpy", code)
    for each in (target, source):
        each.close()


def test_a_compiled_loop_sees_what_another_thread_posts() -> None:
    @njit(nogil=True)
    def follow(counters, most):  # type: ignore[no-untyped-def]
        """Answers every new value of counter 0 in counter 1, up to a last one."""
        seen = 0
        for _ in range(most):
            value = load(address(counters))
            if value != seen:
                seen = value
                store(address(counters) + 8, seen)
            if seen == 100:
                return True
        return False

    counters, answers = words(), []
    follow(counters, 0)  # compiles
    thread = threading.Thread(target=lambda: answers.append(follow(counters, 10**11)))
    thread.start()
    for value in range(1, 101):
        post(counters, 0, value)
        while look(counters, 1) != value and thread.is_alive():
            pass
    thread.join(timeout=60)

    assert answers == [True]


@pytest.mark.parametrize(("to", "at", "count"), [(0, 0, 10), (3, 1, 5), (9, 9, 1), (4, 2, 0)])
def test_copy_moves_the_bytes_asked_for_and_no_others(to: int, at: int, count: int) -> None:
    source, target = np.arange(10, dtype=np.uint8), np.full(10, 99, dtype=np.uint8)

    move(target, to, source, at, count)

    expected = [99] * 10
    expected[to : to + count] = source[at : at + count].tolist()
    assert target.tolist() == expected
