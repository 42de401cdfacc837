"""Our compiled games for all positions: against rules told slowly, and back from what was saved."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plain_ludo import ONE, Luck, Table, laid, taken
from rookery import plugins
from rookery.games.ludo import Ludo
from rookery.games.plugin import PLUGIN

TOKENS = st.lists(st.integers(-1, 56), min_size=4, max_size=4)
THROWS = st.sampled_from(
    [[die] for die in range(1, 6)]
    + [[6, die] for die in range(1, 6)]
    + [[6, 6, die] for die in range(1, 6)]
)

GAMES = {name: plugins.load(rules) for name, rules in PLUGIN.games.items()}


def known(games, table=0):
    """Returns all that the rules of a compiled game know."""
    record = games.tables[table]
    return {
        "places": record["place"].tolist(),
        "seat": int(record["turn"]),
        "dice": [die for die in record["dice"].tolist() if die],
        "owed": int(record["extra"]),
        "choices": np.flatnonzero(record["mask"]).tolist(),
        "due": games.due[table].tolist(),
        "plies": int(record["plies"]),
        "over": bool(games.over[table]),
        "truncated": bool(games.truncated[table].all()),
        "luck": int(record["luck"]),
    }


def told(table):
    return {
        "places": table.places,
        "seat": table.seat,
        "dice": table.dice,
        "owed": table.owed,
        "choices": table.choices(),
        "due": [not table.over and table.seat == seat for seat in range(2)],
        "plies": table.plies,
        "over": table.over,
        "truncated": table.truncated,
        "luck": table.luck.word,
    }


@given(TOKENS, TOKENS, THROWS, st.integers(0, 1), st.integers(0, 2**64 - 1), st.data())
def test_a_move_from_any_position_is_what_the_slow_rules_say(mine, theirs, dice, seat, word, data):
    places = [mine, theirs] if seat == 0 else [theirs, mine]
    # who has won does not play on
    places = [place if place != [56] * 4 else [56, 56, 56, 50] for place in places]
    table = Table(Luck(word), seat=seat, places=places, dice=dice)
    if not table.choices():
        return
    action = data.draw(st.sampled_from(table.choices()))
    games = laid(table)
    assert known(games) == told(table)

    taken(games, action)
    table.play(action)

    assert known(games) == told(table)
    assert games.reward[0].tolist() == {None: [0, 0], 0: [1, -1], 1: [-1, 1]}[table.winner]


@pytest.mark.parametrize("seed", range(8))
def test_whole_games_of_ludo_are_what_the_slow_rules_say(seed):
    rng = np.random.default_rng(seed)
    games = Ludo(1, limit=400)
    luck = int(np.random.default_rng(seed).integers(2**64, dtype=np.uint64))
    games.reset(ONE, rng)
    table = Table(Luck(luck), limit=400).begin()

    while not table.over:
        assert known(games) == told(table)
        action = int(rng.choice(table.choices()))
        taken(games, action)
        table.play(action)

    assert known(games) == told(table)


@pytest.mark.parametrize("seed", range(4))
def test_a_play_out_of_ludo_draws_its_choices_from_the_tables_own_luck(seed):
    games = Ludo(3)
    games.reset(np.arange(3), np.random.default_rng(seed))
    before = np.random.default_rng(seed).integers(2**64, size=3, dtype=np.uint64).tolist()
    tables = [Table(Luck(word)).begin() for word in before]

    games.play_out(np.arange(3))
    for table in tables:
        while not table.over:
            table.play(table.choices()[table.luck.below(len(table.choices()))])

    assert [known(games, i) for i in range(3)] == [told(table) for table in tables]


def random_plies(games, plies, rng):
    """Plays on at all tables; those that are over start anew. Yields after each ply."""
    for _ in range(plies):
        if games.over.any():
            games.reset(np.flatnonzero(games.over), rng)
        tables = np.arange(games.num)
        masks = [games.look(tables, tables * 0 + s)["action_mask"] for s in range(2)]
        allowed = np.where(games.due[:, :1], *masks)
        action = (rng.random(allowed.shape) * allowed).argmax(1)
        games.play(tables, np.stack([action, action], axis=1))
        yield


@pytest.mark.parametrize("name", GAMES)
def test_one_seat_with_a_choice_is_due_until_the_end_and_none_after_it(name):
    rng = np.random.default_rng(3)
    games = GAMES[name](16)
    games.reset(np.arange(16), rng)

    for _ in random_plies(games, 300, rng):
        seen = [games.look(np.arange(16), np.full(16, seat)) for seat in range(2)]
        choices = np.stack([part["action_mask"].sum(1) for part in seen], axis=1)
        np.testing.assert_array_equal(games.due.sum(1), ~games.over)
        assert (choices[games.due] > 0).all()
        assert (choices[~games.due & ~games.over[:, None]] == 0).all()
        np.testing.assert_array_equal(games.ended, np.stack([games.over] * 2, axis=1))
        assert not (games.truncated & ~games.ended).any()
        assert games.observation_space["observation"].contains(seen[0]["observation"][0])


@pytest.mark.parametrize("name", GAMES)
def test_games_go_on_from_what_was_saved_exactly(name):
    rng = np.random.default_rng(5)
    games, again = GAMES[name](8), GAMES[name](8)
    games.reset(np.arange(8), rng)
    list(random_plies(games, 23, rng))

    again.restore_state(json.loads(json.dumps(games.export_state())))
    twin = np.random.default_rng()
    twin.bit_generator.state = rng.bit_generator.state
    pairs = zip(random_plies(games, 200, rng), random_plies(again, 200, twin), strict=True)

    assert all(games.tables.tobytes() == again.tables.tobytes() for _ in pairs)


@pytest.mark.parametrize("name", GAMES)
def test_a_table_does_not_know_of_the_others(name):
    """A game with the same seed and choices is the same alone and in a batch."""
    batch, alone = GAMES[name](5), GAMES[name](1)
    batch.reset(np.arange(5), np.random.default_rng(1))
    batch.reset(np.array([3]), np.random.default_rng(2))
    alone.reset(ONE, np.random.default_rng(2))

    while not alone.over[0]:
        action = int(alone.look(ONE, np.flatnonzero(alone.due[0]))["action_mask"].argmax())
        taken(alone, action)
        batch.play(np.array([3]), np.full((1, 2), action))
        assert batch.tables[3].tobytes() == alone.tables[0].tobytes()
