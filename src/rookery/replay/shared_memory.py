"""Atomic counters and memory copies in shared memory, for code compiled with numba.

The compiler may move or remove a plain load in a loop, and an ARM CPU may reorder two plain
accesses. `load` and `store` are atomic instructions with a full memory fence, so that a reader can
copy rows and then check reliably whether they were overwritten. Python code calls them as `look`
and `post`. `copy` is memcpy. They take memory addresses, see `address`.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from llvmlite.ir import Constant, IntType, IRBuilder, Value
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from rookery.types import Rows

_WORD = 8  # bytes

Args: TypeAlias = Sequence[Value]  # of compiled code


@intrinsic
def address(typing_context, array):  # type: ignore[no-untyped-def]
    """Returns the memory address of an array's first byte. Compiled code only."""

    def code(context: BaseContext, builder: IRBuilder, signature: Signature, args: Args) -> Value:
        data = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, IntType(64))

    return types.int64(array), code


@intrinsic
def load(typing_context, address):  # type: ignore[no-untyped-def]
    """Atomically loads the int64 at a memory address, after all earlier reads. Compiled code only.

    Python code calls `look`.
    """

    def code(context: BaseContext, builder: IRBuilder, signature: Signature, args: Args) -> Value:
        word = IntType(64)
        pointer = builder.inttoptr(args[0], word.as_pointer())
        builder.fence("seq_cst")
        return builder.load_atomic(pointer, "acquire", _WORD, typ=word)

    return types.int64(types.int64), code


@intrinsic
def store(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Atomically stores an int64 at a memory address, after all earlier writes.

    For compiled code only; Python code calls `post`.
    """

    def code(context: BaseContext, builder: IRBuilder, signature: Signature, args: Args) -> Value:
        pointer = builder.inttoptr(args[0], IntType(64).as_pointer())
        builder.store_atomic(args[1], pointer, "release", _WORD)
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def copy(typing_context, target, source, count):  # type: ignore[no-untyped-def]
    """Copies `count` bytes from one memory address to another. Compiled code only."""

    def code(context: BaseContext, builder: IRBuilder, signature: Signature, args: Args) -> Value:
        byte = IntType(8).as_pointer()
        to, at = (builder.inttoptr(address, byte) for address in args[:2])
        cgutils.raw_memcpy(builder, to, at, args[2], Constant(args[2].type, 1))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


@intrinsic
def read(typing_context, address, kind):  # type: ignore[no-untyped-def]
    """Reads a number of type `kind` (np.float32, ...) at a memory address. Compiled code only."""

    def code(context: BaseContext, builder: IRBuilder, signature: Signature, args: Args) -> Value:
        what = context.get_data_type(signature.return_type)
        return builder.load(builder.inttoptr(args[0], what.as_pointer()), typ=what)

    return kind.instance_type(types.int64, kind), code


@njit(cache=True, nogil=True)
def _look(words, index):  # type: ignore[no-untyped-def]
    """Atomically loads an int64 counter, after all earlier reads."""
    return load(address(words) + _WORD * index)


@njit(cache=True, nogil=True)
def _post(words, index, value):  # type: ignore[no-untyped-def]
    """Atomically stores an int64 counter, after all earlier and before all later writes."""
    store(address(words) + _WORD * index, value)


look: Callable[[Rows, int], int] = _look
post: Callable[[Rows, int, int], None] = _post
