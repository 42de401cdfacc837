"""Experience as hypothesis imagines it: interleaved, cut, restarted and overwritten."""

from hypothesis import strategies as st

from sample_experience import Move, play

ACTORS, ENVS = 2, 2
GAMMA = 0.5  # sums of its powers are exact

MOVES = st.sampled_from([Move.RUN] * 8 + [move for move in Move if move is not Move.RUN])
LANE_MOVES = st.tuples(st.integers(0, ACTORS - 1), st.integers(0, ENVS - 1), MOVES)
EXPERIENCE = st.one_of(
    st.lists(LANE_MOVES, max_size=10), st.lists(LANE_MOVES, min_size=25, max_size=80)
).map(play)
SIZES = st.lists(st.integers(1, 20), max_size=10)
CAPACITIES = st.integers(1, 40)
WINDOWS = st.integers(1, 6)
