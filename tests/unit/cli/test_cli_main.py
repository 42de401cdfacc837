"""The command's way in and out: verbs, exit codes, messages, and what is not imported."""

import argparse
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
from importlib.metadata import requires
from types import ModuleType

import pytest

import rookery
from rookery.cli import main as cli
from rookery.cli.main import VERBS, main
from rookery.errors import ConfigError, LostError
from rookery.plugins import Verb
from rookery.terminal import output
from rookery.terminal.arguments import Parser

HEAVY = {"numpy", "torch", "ray", "gymnasium", "numba", "rich", "tensorboard", "psutil"}


@pytest.fixture
def verb(monkeypatch):
    """Adds a verb whose work is the given function."""

    def add(work):
        module = ModuleType("fake_verb", "Does what a test wants.")
        module.add_arguments = lambda parser: parser.add_argument("--json", action="store_true")
        module.run = work
        monkeypatch.setitem(sys.modules, "fake_verb", module)
        monkeypatch.setitem(cli.VERBS, "fake", Verb("fake_verb", "help"))

    return add


def _raise(error):
    raise error


def test_no_help_imports_anything_heavy():
    code = """
import sys
from rookery.cli.main import VERBS, main
codes = [main([]), main(["--help"]), *(main([verb, "--help"]) for verb in VERBS)]
print(codes, file=sys.stderr)
print("\\n".join({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    answer = done.stderr.splitlines()
    assert f"{[0] * (2 + len(VERBS))}" in answer, done.stderr
    assert HEAVY.isdisjoint(answer)


def test_the_help_answers_within_0_3_seconds():
    """Processor time: the wall time on a machine that runs nothing else. The help only computes."""
    command = [sys.executable, "-m", "rookery", "--help"]
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True, timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert min(spent) <= 0.3


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_the_verb(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert f"rookery {verb}" in capsys.readouterr().out


def test_the_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0

    shown = capsys.readouterr().out
    assert [verb for verb in VERBS if f"  {verb} " not in shown] == []


def test_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rookery {rookery.__version__}\n"


def test_python_dash_m_is_the_same_command():
    command = [sys.executable, "-m", "rookery", "--version"]

    assert subprocess.run(command, capture_output=True, text=True, timeout=30).stdout == (
        f"rookery {rookery.__version__}\n"
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["trian"], "did you mean 'train'?"),
        (["zzz"], "allowed: train"),
        (["list", "--jsn"], "did you mean --json?"),
        (["list", "--jsn=3"], "did you mean --json?"),
        (["list", "extra"], "'extra'"),
        (["evaluate"], "RUN"),
        (["evaluate", "runs/absent"], "no run folder 'runs/absent'"),
        (["evaluate", "runs/absent", "--episodes", "0"], "above 0"),
        (["evaluate", "runs/absent", "--episodes", "x"], "above 0"),
        (["evaluate", "runs/absent", "--checkpoint", "newest"], "best, last or a number"),
        (["evaluate", "runs/absent", "--seed", "-1"], "at least 0"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(argv, said, capsys):
    assert main(argv) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rookery: error: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("wrong"), 2, "rookery: error: wrong\n"),
        (LostError("gone"), 3, "rookery: error: gone\n"),
        (KeyboardInterrupt(), 130, "rookery: interrupted\n"),
    ],
)
def test_an_error_becomes_its_exit_code_without_a_traceback(verb, capsys, error, code, message):
    verb(lambda args: _raise(error))

    assert main(["fake"]) == code
    assert capsys.readouterr().err == message


OF_RUNS = (
    "evaluate",
    "record",
    "export",
    "timeline",
    "ladder",
    "play",
    "show",
    "report",
    "compare",
)


@pytest.mark.parametrize("name", OF_RUNS)
def test_an_empty_name_of_a_run_is_not_the_current_folder(name, capsys):
    assert main([name, ""]) == 2
    assert "argument RUN: needs the name of a folder" in capsys.readouterr().err


def test_an_unexpected_error_is_not_hidden(verb):
    verb(lambda args: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        main(["fake"])


def test_a_broken_pipe_inside_the_work_is_not_taken_for_a_reader_that_left(verb):
    verb(lambda args: _raise(BrokenPipeError("to a child")))

    with pytest.raises(BrokenPipeError):
        main(["fake"])


def test_an_interrupt_during_a_verbs_import_is_exit_code_130(monkeypatch, tmp_path, capsys):
    (tmp_path / "interrupted_verb.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.VERBS, "fake", Verb("interrupted_verb", "help"))

    assert main(["fake"]) == 130
    assert capsys.readouterr().err == "rookery: interrupted\n"


def test_an_interrupt_in_code_made_from_a_text_is_exit_code_130_too(tmp_path):
    """`python -m rookery` would end itself with SIGINT at its exit."""
    script = """
import sys
from types import SimpleNamespace
from rookery import plugins
from rookery.cli import main as cli

def interrupted(args):
    exec("raise KeyboardInterrupt")

made = SimpleNamespace(add_arguments=lambda parser: None, run=interrupted, __doc__="")
plugins.load_module = lambda name: made
sys.argv = ["rookery", "train"]
sys.exit(cli.main())
"""
    (tmp_path / "interrupted.py").write_text(script)
    command = [sys.executable, "-m", "interrupted"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (130, "rookery: interrupted\n")


def test_a_verbs_answer_is_the_exit_code(verb):
    verb(lambda args: 143)

    assert main(["fake"]) == 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_heavy_imports_ends_the_process_with_one_line(number, code):
    script = """
import sys
from rookery.terminal import abrupt_exit
with abrupt_exit.abrupt():
    try:
        print("ready", flush=True)
        sys.stdin.read()
    except BaseException:  # what some libraries do
        pass
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    _, said = child.communicate(timeout=30)

    assert child.returncode == code
    assert said in ("rookery: interrupted\n", "rookery: terminated\n")


def test_the_handlers_from_before_come_back():
    from rookery.terminal import abrupt_exit

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with abrupt_exit.abrupt():
        assert signal.getsignal(signal.SIGINT) is not before[0]

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["list", "--settings"]])
def test_a_reader_that_leaves_is_not_an_error(argv):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "rookery", *argv], stdout=writing, stderr=subprocess.PIPE, timeout=30
    )
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_that_is_not_utf8_shows_escapes():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}

    shown = subprocess.run(
        [sys.executable, "-m", "rookery", "list", "--settings"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=30,
    )

    assert shown.returncode == 0
    assert "cut to \\xb1 this" in shown.stdout


# list


def test_list_shows_every_scenario_and_algorithm(capsys):
    from rookery.config.algorithms import known
    from rookery.config.load import load, scenarios

    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)

    assert [name for name in [*scenarios(), *known()] if f"  {name}  " not in shown] == []
    assert answer["scenarios"] == {name: load(name).about for name in scenarios()}
    assert answer["algorithms"] == {name: entry.about for name, entry in known().items()}


def test_list_settings_has_a_line_for_every_setting(capsys):
    from rookery.config.parse import keys

    assert main(["list", "--settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["list", "--settings", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)

    shown = [line.split()[0] for line in lines]
    assert set(shown) == set(keys())
    assert all(" # " in line for line in lines)
    assert [setting["key"] for setting in answer["settings"]] == shown


def test_list_settings_of_an_algorithm_has_what_matters_to_it_first(capsys):
    assert main(["list", "--settings", "--algo", "sac", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)

    found = {setting["key"]: setting["default"] for setting in answer["settings"]}
    order = [*found]
    assert order[:3] == ["env.id", "run.env_steps", "learner.lr"]
    assert order.index("algo.target_entropy") < order.index("replay.batch_size")
    assert order.index("replay.batch_size") < order.index("net.activation")
    assert (found["learner.lr"], found["replay.batch_size"]) == (3e-4, 256)
    assert "algo.dueling" not in found
    assert not any(key.startswith(("sb3.", "cluster.", "report.")) for key in found)


def test_settings_that_an_algorithm_does_not_let_one_choose_are_not_listed():
    from rookery.config.algorithms import known
    from rookery.config.describe import settings_for
    from rookery.config.load import leaves, load

    for name in known():
        config = load(changes={"algo.name": name})
        values = {setting.key: setting.default for setting in settings_for(name)}
        assert values.items() <= dict(leaves(config)).items()
    assert "replay.hindsight" not in {setting.key for setting in settings_for("ppo")}


def test_an_algorithm_without_settings_is_not_listed(capsys):
    assert main(["list", "--algo", "sac"]) == 2
    assert "--algo needs --settings" in capsys.readouterr().err


# help texts


def own_actions(parser):
    """The arguments of a parser and of its subparsers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from own_actions(inner)
        elif not isinstance(action, argparse._HelpAction):
            yield action


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_text_ends_with_its_default_and_begins_in_lower_case(verb):
    parser = Parser(prog=verb, description=None)
    importlib.import_module(VERBS[verb].module).add_arguments(parser)

    for action in own_actions(parser):
        ended = re.search(r"\((required|default[ :].*|setting [\w.]+; default: .*)\)$", action.help)
        assert ended, (verb, action.dest, action.help)
        if action.default not in (None, False, [], argparse.SUPPRESS):
            assert re.search(r"\(default [^ ]+\)$", action.help), (verb, action.dest)
        assert not re.match(r"(the|a|an|that|which|if|is|this|these) ", action.help.lower())


@pytest.mark.parametrize(
    ("spelling", "others"),
    [
        ("--env-steps", {"--steps", "--total-steps", "--timesteps"}),
        ("--seed", {"--random-seed", "--rng"}),
        ("--out", {"--output", "--file", "-o"}),
        ("--run-dir", {"--dir", "--folder"}),
        ("--checkpoint", {"--weights", "--version"}),
    ],
)
def test_one_thing_has_one_spelling_in_all_verbs(spelling, others):
    flags = set()
    for verb in VERBS.values():
        parser = Parser(prog="verb", description=None)
        importlib.import_module(verb.module).add_arguments(parser)
        flags |= set(parser.flags)

    assert spelling in flags
    assert not flags & others


# output


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (1 << 30, "1.0 GB"), (1 << 41, "2.0 TB")],
)
def test_sizes_have_a_unit(count, said):
    assert output.size(count) == said


def test_a_table_without_rows_has_no_lines():
    assert output.table([]) == []


def test_every_extra_is_known_to_the_doctor():
    from rookery.cli.doctor import EXTRAS

    declared = {line.split("extra ==")[1].strip(" \"'") for line in _with_extra()}
    assert set(EXTRAS) == declared - {"dev"}


def _with_extra():
    return [line for line in requires("rookery") or [] if "extra ==" in line]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["timeline", "run", "--out="], "got an empty one"),
        (["timeline", "run", "--trace="], "got an empty one"),
        (["timeline", "run", "--flow="], "got an empty one"),
        (["compare", "run", "--out="], "got an empty one"),
        (["report", "run", "--out="], "got an empty one"),
        (["clean", "--runs="], "needs a folder that exists, got ''"),
    ],
)
def test_an_empty_path_is_refused_and_not_taken_for_the_current_folder(argv, said, capsys):
    assert main(argv) == 2

    assert said in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["help"]])
def test_the_command_alone_prints_the_help_with_three_commands_to_start_with(argv, capsys):
    assert main(argv) == 0

    shown = capsys.readouterr().out
    start = shown.partition("to start with:\n")[2].split("\n\n")[0].splitlines()
    assert len(start) == 3
    assert all(line.startswith("  rookery ") for line in start)


def test_help_of_a_verb_is_its_help(capsys):
    assert main(["help", "train"]) == 0
    by_help = capsys.readouterr().out
    assert main(["train", "--help"]) == 0
    assert capsys.readouterr().out == by_help
