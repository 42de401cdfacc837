"""The tables of what is refused: each row names settings that there are."""

import pytest

from rookery.config import refusals
from rookery.config.algorithms import known
from rookery.config.load import load
from rookery.config.parse import keys
from rookery.config.schema import Config, Sb3Config
from rookery.errors import ConfigError

RUN = [*refusals.RUN, *refusals.SIZES]
ROWS = [*RUN, *refusals.SB3_RUN, *refusals.START]


@pytest.mark.parametrize("row", ROWS, ids=[row.text.partition(", got")[0] for row in ROWS])
def test_a_row_says_what_was_given_what_is_allowed_and_what_to_do(row):
    always = row._replace(when=lambda run: True)

    with pytest.raises(ConfigError, match=r"^.+, got [^;]+; [^;]+$"):
        refusals.refuse([always], Config(sb3=Sb3Config(kwargs={"policy_kwargs": {}})))


def test_the_rows_of_a_few_values_are_about_settings_that_exist():
    derived = {"algo.sequence", "algo.remembers"}
    tables = [refusals.SB3_TAKES, *refusals.RUN_TAKES.values()]
    tables += [entry.settings().takes for entry in known().values()]

    assert {key for table in tables for key in table} <= {*keys()} | derived
    assert {who.partition(" ")[0] for who in refusals.RUN_TAKES} <= {*keys()}


def test_a_default_run_is_refused_by_no_row():
    for who, takes in refusals.applying(refusals.RUN_TAKES, Config()):
        refusals.refuse_others(who, takes, Config())
    assert [row.text for row in RUN if row.when(Config())] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run.mode": "async", "run.engine": "ray", "replay.storage": "disk"}, "not on all hosts"),
        ({"cluster.address": "auto"}, "cluster.address takes run.engine ray only, got auto"),
        (
            {"cluster.learner_resources": {"GPU": 1}},
            r"resources \{\} only, .*: give --address",
        ),
        ({"sharing.pool": "pool", "replay.storage": "disk"}, "takes replay.storage memory only"),
        ({"replay.shards": 2}, "got replay.shards 2 and actor.num 1; use as many actors"),
        ({"replay.hindsight": 0.5, "env.frame_stack": 4}, "env.frame_stack 1 only, got 4"),
        (
            {"selfplay.league": True},
            r"league false only, got true; add .* \{latest: 0.5",
        ),
        (
            {"algo.munchausen": True, "algo.values": "quantiles"},
            "mean or implicit only, got quantiles; .* algo.munchausen out",
        ),
        ({"algo.value_min": 10.0}, "algo.value_min must be below algo.value_max 10.0, got 10.0"),
        ({"algo.name": "r2d2", "replay.learning_starts": 400}, "need .* 488, got 400; raise it"),
        ({"learner.replicas": 3}, "3 equal slices, got 128; set it to a multiple of 3"),
    ],
)
def test_a_combination_is_refused_with_what_to_do(changes, message):
    with pytest.raises(ConfigError, match=message):
        load(changes=changes)
