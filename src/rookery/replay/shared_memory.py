"""Atomic counters and memory copies in shared memory, for code compiled with numba.

The compiler may move or remove a plain load in a loop, and an ARM CPU may reorder two plain
accesses. `load` and `store` are atomic instructions with a full memory fence, so that a reader can
copy rows and then check reliably whether they were overwritten. Python code calls them as `look`
and `post`. `copy` is memcpy.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from rookery.types import Rows

_ALIGN = 8


def _pointer(
    context: BaseContext,
    builder: ir.IRBuilder,
    array_type: types.Array,
    array: ir.Value,
    index: ir.Value,
) -> ir.Value:
    data = cgutils.create_struct_proxy(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def load(typing_context, words, index):  # type: ignore[no-untyped-def]
    """Atomically loads the int64 counter words[index], after all earlier reads. Compiled code only.

    Python code calls `look`.
    """

    def code(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> ir.Value:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        builder.fence("seq_cst")
        return builder.load_atomic(pointer, "acquire", _ALIGN, typ=ir.IntType(64))

    return types.int64(words, types.intp), code


@intrinsic
def store(typing_context, words, index, value):  # type: ignore[no-untyped-def]
    """Atomically stores the int64 counter words[index], after all earlier writes.

    For compiled code only; Python code calls `post`.
    """

    def code(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> ir.Value:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], pointer, "release", _ALIGN)
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), code


@intrinsic
def copy(typing_context, target, to, source, at, count):  # type: ignore[no-untyped-def]
    """Copies `count` bytes from source[at:] to target[to:], uint8 arrays. Compiled code only."""

    def code(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> ir.Value:
        to_pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        from_pointer = _pointer(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, to_pointer, from_pointer, args[4], ir.Constant(args[4].type, 1))
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), code


@intrinsic
def read(typing_context, address, kind):  # type: ignore[no-untyped-def]
    """Reads a number of type `kind` (np.float32, ...) at a memory address. Compiled code only."""

    def code(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> ir.Value:
        what = context.get_data_type(signature.return_type)
        return builder.load(builder.inttoptr(args[0], what.as_pointer()), typ=what)

    return kind.instance_type(types.int64, kind), code


@intrinsic
def load_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Atomically loads the int64 at a memory address, after earlier reads. Compiled code only."""

    def code(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> ir.Value:
        word = ir.IntType(64)
        pointer = builder.inttoptr(args[0], word.as_pointer())
        builder.fence("seq_cst")
        return builder.load_atomic(pointer, "acquire", _ALIGN, typ=word)

    return types.int64(types.int64), code


@intrinsic
def copy_at(typing_context, target, source, count):  # type: ignore[no-untyped-def]
    """Copies `count` bytes from one memory address to another. Compiled code only."""

    def code(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> ir.Value:
        byte = ir.IntType(8).as_pointer()
        to, at = (builder.inttoptr(address, byte) for address in args[:2])
        cgutils.raw_memcpy(builder, to, at, args[2], ir.Constant(args[2].type, 1))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


@njit(cache=True, nogil=True)
def _look(words, index):  # type: ignore[no-untyped-def]
    """Atomically loads an int64 counter, after all earlier reads."""
    return load(words, index)


@njit(cache=True, nogil=True)
def _post(words, index, value):  # type: ignore[no-untyped-def]
    """Atomically stores an int64 counter, after all earlier and before all later writes."""
    store(words, index, value)


look: Callable[[Rows, int], int] = _look
post: Callable[[Rows, int, int], None] = _post
