"""Files of the zoo may hold anything: it is imported or refused, and nothing else happens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.config import translate, zoo
from rookery.config.schema import Backend
from rookery.errors import ConfigError

ODD = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text("a_1.[", max_size=4)
VALUE = st.recursive(
    ODD,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2)
    ),
    max_leaves=3,
)
NAMES = list(translate.ALGORITHMS)
ROWS = {key for row in translate.ALGORITHMS.values() for key in row.table} | set(zoo.SB3)
ENTRY = st.dictionaries(st.sampled_from(sorted(ROWS | {"other"})), VALUE, max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), ENTRY)
def test_whatever_stands_there_is_translated_or_refused(name, entry):
    try:
        draft = zoo.MAKERS[Backend.ROOKERY](name, "A-v0", {"n_timesteps": 5_000, **entry})
    except ConfigError:
        return

    assert draft.nested()["env"]["id"] == "A-v0"


@settings(max_examples=200, deadline=None)
@given(ENTRY)
def test_whatever_stands_there_is_handed_to_sb3_or_refused(entry):
    try:
        draft = zoo.MAKERS[Backend.SB3]("sac", "A-v0", {"n_timesteps": 5_000, **entry})
    except ConfigError:
        return

    assert draft.nested()["sb3"]["algorithm"] == "SAC"
