"""Engines start worker objects, such as actors and inference servers, and return their handles.

A worker runs in the caller's process (`inline`), in a child process (`processes`), or on a host of
a Ray cluster (`ray`).
"""

from rookery.config.schema import Engine
from rookery.engines import inline, processes
from rookery.engines.engine import Start

ENGINES: dict[Engine, Start] = {Engine.INLINE: inline.start, Engine.PROCESSES: processes.start}
