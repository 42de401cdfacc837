"""Our compiled games beside PettingZoo's: the same actions, everything compared after each."""

import numpy as np

from rookery.games.connect_four import ConnectFour

ONE = np.array([0])


def agree(games, env):
    """Asserts that both seats see, may do and earn the same, and when both games are over."""
    for seat, agent in enumerate(env.possible_agents):
        ours, theirs = games.look(ONE, np.array([seat])), env.observe(agent)
        assert set(ours) == set(theirs)
        for name, part in theirs.items():
            assert ours[name].dtype == part.dtype
            np.testing.assert_array_equal(ours[name][0], part)
        assert games.reward[0, seat] == env.rewards[agent]
        assert games.over[0] == env.terminations[agent]
        assert games.ended[0, seat] == games.over[0]
        assert games.truncated[0, seat] == env.truncations[agent]
        assert games.due[0, seat] == (agent == env.agent_selection and not games.over[0])


def paired(games, env, rng):
    """Plays one random game in both; returns what the seats earned."""
    games.reset(ONE, rng)
    env.reset()
    agree(games, env)
    while not games.over[0]:
        mask = env.observe(env.agent_selection)["action_mask"]
        action = int(rng.choice(np.flatnonzero(mask)))
        games.play(ONE, np.full((1, 2), action))
        env.step(action)
        agree(games, env)
    return tuple(games.reward[0].tolist())


def drawn(rng):
    """Returns the actions of a game of Connect Four that fills the board without a line."""
    games, tables, played = ConnectFour(2048), np.arange(2048), []
    games.reset(tables, rng)
    for _ in range(42):
        # those that are over show their masks too; they are not played
        going, masks = np.flatnonzero(~games.over), games.tables["mask"]
        played.append((rng.random(masks.shape) * masks).argmax(1))
        games.play(going, np.stack([played[-1][going]] * 2, axis=1))
    full = (games.tables["mask"] == 0).all(1) & (games.reward == 0).all(1)
    return np.stack(played)[:, np.flatnonzero(full)[0]].tolist()
