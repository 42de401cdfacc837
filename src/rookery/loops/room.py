"""Memory for the cases that policies are judged on, before it is taken."""

from rookery.envs.pathfinding.cases import Cases
from rookery.envs.pathfinding.rules import Rules
from rookery.envs.pathfinding.worlds import world_bytes
from rookery.errors import ConfigError
from rookery.loops.estimate import spelled
from rookery.manage import machine

TOGETHER = 1 << 30  # bytes of worlds that are played at once, where that is more than one
DRAWING = 16  # bytes for each cell of the map that is being drawn


def refuse_cases(count: int, *, agents: int, size: int) -> None:
    """Refuses more cases than there is memory for; maps are there twice when they are stacked."""
    need, free = (2 * count + DRAWING) * size**2, machine.memory().free
    if need > free:
        raise ConfigError(
            f"{count} cases of {agents} agents on {size} x {size} cells need up to "
            f"{spelled(need)} of memory, {spelled(free)} are available; lower --cases or --size"
        )


def at_once(cases: Cases, rules: Rules, most: int) -> int:
    """Returns how many worlds to play at once: `most`, and fewer where they are large."""
    agents, (rows, columns) = cases.starts.shape[1], cases.maps.shape[1:]
    each, free = world_bytes(agents, rows, columns, rules), machine.memory().free
    if each > free:
        raise ConfigError(
            f"{agents} agents on {rows} x {columns} cells need {spelled(each)} of memory, "
            f"{spelled(free)} are available; take fewer agents or a smaller map"
        )
    return max(1, min(most, len(cases.maps), min(TOGETHER, free) // each))
