"""The body of a request: nothing is allocated for it before its sender is known."""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from rookery.errors import RefusedError

if TYPE_CHECKING:
    from starlette.types import Message, Receive


class Body:
    """So many bytes that may or may not arrive."""

    def __init__(self, receive: "Receive", size: int):
        self._receive, self.size = receive, size
        self.complete = False  # has the last byte been taken?

    async def read(self, patience_s: float) -> bytearray:
        """Returns the body, received into one buffer; refuses it when it is late, or cut short."""
        whole = bytearray(self.size)
        view, at = memoryview(whole), 0
        try:
            async with asyncio.timeout(patience_s):
                while not self.complete:
                    chunk = await self._next()
                    view[at : at + len(chunk)] = chunk
                    at += len(chunk)
        except TimeoutError:
            raise RefusedError(
                f"{at} of {self.size} bytes arrived within the {patience_s:.1f} s allowed; use a "
                "faster line, or smaller updates",
                code="late",
            ) from None
        if at != self.size:
            raise RefusedError(
                f"{at} of {self.size} bytes arrived; send all of them", code="malformed"
            )
        return whole

    async def drain(self, patience_s: float) -> None:
        """Throws a refused body away: a client that is still sending would not see the answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self.complete:
                    await self._next()

    async def _next(self) -> bytes:
        event: Message = await self._receive()
        self.complete = not event.get("more_body", False)  # also where the client has gone
        chunk: bytes = event.get("body", b"")
        return chunk
