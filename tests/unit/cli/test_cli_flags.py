"""Flags that are described as the help shows them."""

import argparse

import pytest

from rookery.terminal import arguments
from rookery.terminal.arguments import Parser, parse

TEXT = """
--fps F  frames per second (default 30)
--out, --file FILE  file to write (default: none)
--seat {first,second}  your player, whose name is quite long and therefore told
  on two lines (default first)
--tag TAG  group; repeatable (default: all)
--gpus I ...  numbers of GPUs (default: none)
--client NAME  name of the client (required)
--quiet  hide progress (default: show it)
"""


def read(*argv: str) -> argparse.Namespace:
    parser = Parser(prog="verb", description=None)
    arguments.add_flags(parser, TEXT, fps=float, gpus=int)
    return parse(parser, ["--client", "alice", *argv])


def test_the_default_that_a_text_names_is_the_default():
    found = vars(read())

    assert found == {
        "fps": 30.0,
        "out": None,
        "seat": "first",
        "tag": [],
        "gpus": None,
        "client": "alice",
        "quiet": False,
    }


def test_values_are_read_as_the_metavar_or_the_reader_says():
    argv = ("--fps", "2.5", "--file", "a/b", "--tag", "x", "--tag", "y", "--gpus", "0", "1")
    found = read(*argv, "--quiet", "--seat", "second")

    assert (found.fps, str(found.out), found.seat) == (2.5, "a/b", "second")
    assert (found.tag, found.gpus, found.quiet) == (["x", "y"], [0, 1], True)


def test_the_help_is_the_text(capsys):
    parser = Parser(prog="verb", description=None)
    arguments.add_flags(parser, TEXT)
    parser.print_help()

    shown = " ".join(capsys.readouterr().out.split())
    assert "--seat {first,second} your player, whose name is quite long and" in shown
    assert "told on two lines (default first)" in shown


@pytest.mark.parametrize("argv", [["--seat", "third"], ["--fps", "fast"], ["--client"]])
def test_other_values_are_refused(argv):
    with pytest.raises(ValueError, match=f"argument {argv[0]}"):
        read(*argv)


def test_flags_of_settings_have_the_comment_of_the_setting_as_help(capsys):
    parser = Parser(prog="verb", description=None)
    text = "--learners N  learner.replicas\n--shards N  replay.shards: parts of the buffer"
    arguments.add_settings(parser, text)
    found = parse(parser, ["--learners", "2"])
    parser.print_help()

    shown = " ".join(capsys.readouterr().out.split())
    assert arguments.given_settings(found) == {"learner.replicas": 2}
    assert "(setting learner.replicas; default: the scenario's)" in shown
    assert "parts of the buffer (setting replay.shards; default: the scenario's)" in shown
