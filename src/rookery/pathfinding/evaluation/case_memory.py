"""Memory checks for the evaluation of path-finding policies, made before maps are allocated."""

from rookery.errors import ConfigError
from rookery.pathfinding.world.cases import Cases
from rookery.pathfinding.world.rules import WorldRules
from rookery.pathfinding.world.worlds import world_bytes
from rookery.runtime import machine
from rookery.training.resources import spelled

MAX_WORLD_BYTES = 1 << 30  # bytes of the worlds that are played at once, if these are several
DRAWING = 16  # bytes per cell while one map is being drawn


def check_case_memory(count: int, *, agents: int, size: int) -> None:
    """Raises ConfigError if `count` random problem instances would not fit into memory.

    An instance is a map of `size` x `size` cells with starts and goals. Two copies of all maps have
    to fit: concatenating the maps copies them.
    """
    need, free = (2 * count + DRAWING) * size**2, machine.memory().free
    if need > free:
        raise ConfigError(
            f"{count} instances of {agents} agents on {size} x {size} cells need up to "
            f"{spelled(need)} of memory, {spelled(free)} are available; lower --cases or --size"
        )


def worlds_at_once(cases: Cases, rules: WorldRules, most: int) -> int:
    """Returns how many problem instances to play in parallel: up to `most`, fewer on large maps.

    Raises ConfigError if not even one fits into memory.
    """
    agents, (rows, columns) = cases.starts.shape[1], cases.maps.shape[1:]
    each, free = world_bytes(agents, rows, columns, rules), machine.memory().free
    if each > free:
        raise ConfigError(
            f"{agents} agents on {rows} x {columns} cells need {spelled(each)} of memory, "
            f"{spelled(free)} are available; take fewer agents or a smaller map"
        )
    return max(1, min(most, len(cases.maps), min(MAX_WORLD_BYTES, free) // each))
