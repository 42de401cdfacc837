"""`rookery completion`: what a shell is told, and what bash makes of it."""

import resource
import subprocess
import sys

import pytest

from rookery.cli.completion import completions
from rookery.cli.main import VERBS, main
from rookery.config.load import scenarios


def completed(script: str, folder, *words: str) -> list[str]:
    """What bash offers for the last word of a line."""
    line = " ".join(f"'{word}'" for word in ("rookery", *words))
    printed = "printf '%s\\n' \"${COMPREPLY[@]}\""
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _rookery; {printed}"
    command = ["bash", "-c", f"{script}\n{ask}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def script(capsys) -> str:
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def test_bash_completes_verbs_flags_scenarios_and_run_folders(script, tmp_path):
    for run in ("cartpole-a", "pendulum-b"):
        (tmp_path / "runs" / run).mkdir(parents=True)

    assert completed(script, tmp_path, "ev") == ["evaluate"]
    assert completed(script, tmp_path, "train", "--env-st") == ["--env-steps"]
    assert completed(script, tmp_path, "train", "sac-p") == ["sac-pendulum"]
    assert completed(script, tmp_path, "share", "pong") == ["pong"]
    assert completed(script, tmp_path, "evaluate", "runs/c") == ["runs/cartpole-a"]
    assert completed(script, tmp_path, "new", "alg") == ["algo"]
    assert completed(script, tmp_path, "serve", "key") == ["keys"]


def test_the_name_of_a_folder_is_no_command(script, tmp_path):
    (tmp_path / "runs" / "$(touch ran)").mkdir(parents=True)

    completed(script, tmp_path, "evaluate", "")

    assert not (tmp_path / "ran").exists()


def test_every_verb_has_its_flags_and_verbs_with_scenarios_have_all():
    found = {words.verb: words for words in completions()}

    assert {verb for verb in VERBS if " " not in verb} <= set(found)
    assert all("--help" in words.flags for words in found.values())
    for verb in ("train", "share", "serve"):
        assert set(scenarios()) <= set(found[verb].names)
    assert {verb for verb, words in found.items() if words.runs} >= {"evaluate", "show", "runs"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_told_the_same_words(shell, capsys):
    assert main(["completion", shell]) == 0

    said = capsys.readouterr().out
    dashes = "-l " if shell == "fish" else "--"
    wanted = [f"{dashes}env-steps", "sac-pendulum", "completion", "runs/"]
    assert [word for word in wanted if word not in said] == []


def test_the_script_is_printed_in_0_3_seconds_and_without_torch():
    """Processor time: the wall time on a machine that runs nothing else."""
    code = "import sys; from rookery.cli.main import main; main(['completion', 'bash']); " + (
        "sys.exit('torch' in sys.modules)"
    )
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert min(spent) <= 0.3
