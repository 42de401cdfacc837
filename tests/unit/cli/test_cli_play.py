"""`rookery play`: a person's lines in, a game out; every way to leave is a polite one."""

import io
import re
from pathlib import Path

import numpy as np
import pytest

from heap_games import Always, Careful, Heaps, Pennies
from rookery.cli import play
from rookery.cli.main import main
from rookery.errors import ConfigError
from rookery.selfplay import human_play
from rookery.selfplay.human_play import HumanGame, described

TWELVE = {"opponent": Careful(), "games": Heaps(1)}


@pytest.fixture
def at_table(monkeypatch: pytest.MonkeyPatch):
    """Returns what plays a game with these lines, whatever run is named; its exit code."""

    def sit(lines: str, *argv: str, games=None, opponent=None) -> int:
        def opened(run_dir: Path, *, against: str, seed: int) -> HumanGame:
            rng = np.random.default_rng(seed)
            return HumanGame(games or Heaps(1, stones=5), opponent or Careful(), rng)

        monkeypatch.setattr(human_play, "open_table", opened)
        monkeypatch.setattr("rookery.terminal.arguments.require_run", lambda run: None)
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        return main(["play", "runs/a", *argv])

    return sit


def test_a_game_is_played_to_its_end_through_a_pipe(at_table, capsys):
    """Five stones: one taken leaves four, and whatever comes then the first seat wins."""
    assert at_table("0\n2\nn\n", "--seat", "first") == 0

    out = capsys.readouterr().out
    assert "you are first" in out
    assert "best plays 0" in out
    assert "you won" in out
    assert out.splitlines()[-1] == "bye: 1 won, 0 drawn, 0 lost"


def test_the_policy_begins_where_the_person_is_second(at_table, capsys):
    at_table("0\n0\n0\n0\nn\n", "--seat", "second")

    out = capsys.readouterr().out
    assert out.index("you are second") < out.index("best plays") < out.index("your move")
    assert "you lost" in out


def test_another_game_can_be_played(at_table, capsys):
    at_table("0\n2\ny\n1\n0\n0\n0\nn\n", "--seat", "first")

    out = capsys.readouterr().out
    assert out.count("you are first") == 2
    assert re.search(r"bye: 1 won, 0 drawn, 1 lost$", out.strip())


def test_only_allowed_actions_are_offered(at_table, capsys):
    at_table("2\n", "--seat", "first", opponent=Always(0))

    offers = re.findall(r"you may play: (.*)", capsys.readouterr().out)
    assert offers == ["0, 1, 2", "0"]  # one stone is left in the end


@pytest.mark.parametrize("wrong", ["7", "-1", "left", "", "0.5", "٣"])
def test_what_is_not_allowed_is_asked_for_again(at_table, capsys, wrong):
    at_table(f"{wrong}\n0\n2\nn\n", "--seat", "first")

    out = capsys.readouterr().out
    assert "is not one of 0, 1, 2" in out
    assert "you won" in out


def test_help_explains_and_the_game_goes_on(at_table, capsys):
    at_table("help\n0\n2\nn\n", "--seat", "first")

    out = capsys.readouterr().out
    assert "Ctrl+D" in out
    assert "you won" in out


@pytest.mark.parametrize("lines", ["", "quit\n", "0\nq\n", "0\n"])
def test_leaving_in_mid_game_is_no_error(at_table, capsys, lines):
    assert at_table(lines, "--seat", "first") == 0

    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "bye"
    assert captured.err == ""


def test_leaving_at_the_question_keeps_the_count(at_table, capsys):
    assert at_table("0\n2\n", "--seat", "first") == 0

    assert capsys.readouterr().out.splitlines()[-1] == "bye: 1 won, 0 drawn, 0 lost"


def test_ctrl_c_says_goodbye_and_has_its_exit_code(at_table, capsys, monkeypatch):
    def interrupted(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)

    assert at_table("", "--seat", "first") == 130
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "bye"
    assert captured.err == ""


def test_all_seats_may_move_at_once(at_table, capsys):
    at_table("1\n1\n0\nn\n", "--seat", "first", games=Pennies(1), opponent=Always(1))

    out = capsys.readouterr().out
    assert out.count("best plays 1") == 3
    assert "you won" in out


def test_a_limit_makes_a_draw(at_table, capsys):
    at_table("0\nn\n", "--seat", "first", games=Heaps(1, stones=9, limit=2))

    assert "a draw" in capsys.readouterr().out


def test_a_drawn_seat_depends_on_the_seed_alone(at_table, capsys):
    def seats(seed: int) -> list[str]:
        at_table("0\n" * 60, "--seat", "random", "--seed", str(seed), opponent=Always(0))
        return re.findall(r"you are (\w+)", capsys.readouterr().out)

    assert seats(3) == seats(3)
    assert {seats(seed)[0] for seed in range(8)} == {"first", "second"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--against", "nobody"], "needs best, last, random, scripted, or v and a version"),
        (["--against", "v-3"], "or v and a version"),
        (["--seat", "third"], "first"),
        (["--seed", "-1"], "--seed: needs a whole number, at least 0"),
    ],
)
def test_a_wrong_request_is_refused(capsys, argv, said):
    assert main(["play", "runs/a", *argv]) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_is_not_there_is_refused(capsys, tmp_path):
    assert main(["play", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_a_version_may_be_written_as_the_file_is():
    assert play.opponent("v000000400") == "v400"


def test_actions_that_cannot_be_counted_are_refused():
    from gymnasium import spaces

    games = Heaps(1)
    games.action_space = spaces.Box(0.0, 1.0, (2,))
    with pytest.raises(ConfigError, match="Discrete"):
        HumanGame(games, Careful(), np.random.default_rng(0))


def test_a_position_without_a_text_board_is_printed_without_its_mask():
    games = Heaps(1, stones=2)
    games.reset(np.zeros(1, dtype=np.int64), np.random.default_rng(0))

    text = described(games.look(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)))

    assert text == "observation:\n[0. 0. 1.]"
