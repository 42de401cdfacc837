"""Engines: where roles live. One small interface, one row for each place."""

from rookery.config.schema import Engine
from rookery.engines import inline, processes
from rookery.engines.interface import Start

ENGINES: dict[Engine, Start] = {
    Engine.INLINE: inline.start,
    Engine.PROCESSES: processes.start,
}
