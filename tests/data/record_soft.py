"""Records games of POGEMA under its collision rule `soft`, for `test_pathfinding_soft.py`.

    python tests/data/record_soft.py tests/data/pogema_soft.npz

Needs pogema 1.4.0 (which needs numpy below 2 and an old gymnasium: not beside rookery).
"""

import sys
import warnings

import numpy as np
from pogema import GridConfig, pogema_v0

GAMES, STEPS, SIZE, AGENTS, SEED = 36, 48, 8, 40, 20251
PRESENT, DENSITIES = (6, 12, 20, 28, 34, 40), (0.0, 0.1, 0.2)


def deal(game, rng):
    """Returns a map, starts and targets; in even games everybody starts on its target."""
    blocked = np.zeros((SIZE, SIZE), dtype=np.uint8)
    cells = rng.permutation(SIZE * SIZE)
    blocked.flat[cells[: int(DENSITIES[game % 3] * SIZE * SIZE)]] = 1
    free = np.argwhere(blocked == 0)
    present = PRESENT[game // 3 % 6]
    starts = rng.permutation(free)[:present]
    targets = np.roll(starts, 1, axis=0) if game % 2 else starts.copy()
    return blocked, starts, targets


def play(blocked, starts, targets, rng):
    """Yields actions and the places after them; agents mostly go on as they went."""
    env = pogema_v0(
        GridConfig(
            map=blocked.tolist(),
            agents_xy=starts.tolist(),
            targets_xy=targets.tolist(),
            num_agents=len(starts),
            obs_radius=4,
            on_target="nothing",
            collision_system="soft",
            observation_type="MAPF",
            max_episode_steps=STEPS + 1,
            seed=SEED,
        )
    )
    env.reset()
    action = rng.integers(5, size=len(starts))
    for _ in range(STEPS):
        turns = rng.random(len(starts)) < 0.4
        action = np.where(turns, rng.integers(5, size=len(starts)), action)
        env.step(action.tolist())
        yield action, np.array(env.unwrapped.get_agents_xy(ignore_borders=True))


def main(path):
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(SEED)
    maps = np.zeros((GAMES, SIZE, SIZE), dtype=np.uint8)
    starts = np.full((GAMES, AGENTS, 2), -1, dtype=np.int8)
    actions = np.zeros((STEPS, GAMES, AGENTS), dtype=np.uint8)
    places = np.full((STEPS, GAMES, AGENTS, 2), -1, dtype=np.int8)
    for game in range(GAMES):
        maps[game], begin, targets = deal(game, rng)
        present = len(begin)
        starts[game, :present] = begin
        for step, (action, place) in enumerate(play(maps[game], begin, targets, rng)):
            actions[step, game, :present] = action
            places[step, game, :present] = place
    np.savez_compressed(path, maps=maps, starts=starts, actions=actions, places=places)


if __name__ == "__main__":
    main(sys.argv[1])
