"""What the games add to the core is found by name, and refused where a game cannot be used."""

from pathlib import Path

import pytest

import rookery
from rookery import plugins
from rookery.cli import share
from rookery.cli.main import main
from rookery.config.load import load, scenarios
from rookery.errors import ConfigError
from rookery.games.plugin import PLUGIN
from rookery.terminal.arguments import Parser, parse


def test_the_core_finds_the_plugin():
    assert PLUGIN in plugins.plugins()
    assert {"ludo", "connect-four", "tictactoe", "league", "league-exploiter"} <= {*scenarios()}


def test_the_scenarios_of_a_league_can_play_each_other():
    parser = Parser(prog="rookery share", description=None)
    share.add_arguments(parser)
    args = parse(parser, ["--scenarios", "league", "league-exploiter", "--strategy", "local_only"])

    jobs, configs = zip(*share.plan(args, Path("runs/x"), Path("pool")), strict=True)

    assert all(job.shares and "sharing.pool=pool" in job.command for job in jobs)
    assert [config.selfplay.part for config in configs] == ["main", "exploiter"]


def test_self_play_cannot_be_served(capsys):
    assert load("tictactoe").selfplay.on
    assert main(["serve", "--scenario", "tictactoe"]) == 2
    assert "against its own past" in capsys.readouterr().err


def test_components_play_no_games():
    with pytest.raises(ConfigError, match="several seats"):
        rookery.DistributedEnvironment("tictactoe", engine="inline")
