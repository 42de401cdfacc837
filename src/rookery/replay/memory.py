"""Shared memory, touched with care: ordered counters and plain copies, for compiled code.

A plain load in a compiled loop may be folded away or moved, and on ARM two plain accesses may swap
places. These two are real atomic instructions with a full fence, so that "copy, then look again"
means what it says. Python calls them through `look` and `post`. `copy` is memcpy.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from rookery.types import Rows

_ALIGN = 8


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = cgutils.create_struct_proxy(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def load(typing_context, words, index):  # type: ignore[no-untyped-def]
    """What `look` does, inside compiled code."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        builder.fence("seq_cst")
        return builder.load_atomic(pointer, "acquire", _ALIGN, typ=ir.IntType(64))

    return types.int64(words, types.intp), code


@intrinsic
def store(typing_context, words, index, value):  # type: ignore[no-untyped-def]
    """What `post` does, inside compiled code."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], pointer, "release", _ALIGN)
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), code


@intrinsic
def copy(typing_context, target, to, source, at, count):  # type: ignore[no-untyped-def]
    """Copies `count` bytes from source[at:] to target[to:], uint8 arrays. Compiled code only."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to_pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        from_pointer = _pointer(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, to_pointer, from_pointer, args[4], ir.Constant(args[4].type, 1))
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), code


@intrinsic
def read(typing_context, address, kind):  # type: ignore[no-untyped-def]
    """Reads a number of that kind (np.float32, ...) at an address. Compiled code only."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        what = context.get_data_type(signature.return_type)
        return builder.load(builder.inttoptr(args[0], what.as_pointer()), typ=what)

    return kind.instance_type(types.int64, kind), code


@intrinsic
def load_at(typing_context, address):  # type: ignore[no-untyped-def]
    """What `load` does, at an address."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(args[0], word.as_pointer())
        builder.fence("seq_cst")
        return builder.load_atomic(pointer, "acquire", _ALIGN, typ=word)

    return types.int64(types.int64), code


@intrinsic
def copy_at(typing_context, target, source, count):  # type: ignore[no-untyped-def]
    """Copies `count` bytes from one address to another. Compiled code only."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        to, at = (builder.inttoptr(address, byte) for address in args[:2])
        cgutils.raw_memcpy(builder, to, at, args[2], ir.Constant(args[2].type, 1))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


@njit(cache=True, nogil=True)
def _look(words, index):  # type: ignore[no-untyped-def]
    """Loads a counter after everything that was read before it."""
    return load(words, index)


@njit(cache=True, nogil=True)
def _post(words, index, value):  # type: ignore[no-untyped-def]
    """Stores a counter after all that was written before it, and before all that follows."""
    store(words, index, value)


look: Callable[[Rows, int], int] = _look
post: Callable[[Rows, int, int], None] = _post
