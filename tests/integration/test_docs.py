"""The documentation, followed word by word in an empty folder.

* A block whose first line is a comment with a file's name (`# my_env.py`) is that file.
* A python block without one is a script, given to Python on standard input.
* Of a bash block the lines that begin with rookery or python are run. `# exit 2` at a line's end
  names the exit code that is expected; without it 0 is.
* A text block after one of these is what it prints, `...` standing for anything.
* `<!-- not run: reason -->` on the line before a block leaves that block alone.
"""

import ast
import errno
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks import command as benchmarks
from docs import write_settings
from rookery import plugins
from rookery.cli.main import VERBS
from rookery.config.load import load
from rookery.config.parse import keys
from rookery.config.schema import Config
from rookery.errors import ConfigError, LostError
from rookery.terminal.arguments import Parser
from run_processes import CommandForker

TREE = Path(__file__).parents[2]
PAGES = [TREE / "README.md", *sorted((TREE / "docs").rglob("*.md"))]
# test_components_example and test_tune_example run them
ELSEWHERE = ("components", "tune", "tune_optuna")
EXAMPLES = [path for path in sorted((TREE / "examples").glob("*.py")) if path.stem not in ELSEWHERE]
ARGUMENTS = {"train_ludo": ["200"]}  # games
TROUBLE = TREE / "docs" / "troubleshooting.md"
ROOTS = (TREE, TREE / "src" / "rookery")
DEADLINE_S = 120.0

BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)
FILE = re.compile(r"# ([\w/-]+\.\w+)\n")
SHELL = frozenset("|&;<>$`*?")  # what only a shell understands
EXIT = re.compile(r"#.*\bexit (\d+)")
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"")
SETTINGS = set(keys())
SECTIONS = "|".join(sorted({key.partition(".")[0] for key in SETTINGS if "." in key}))
ATTRIBUTES = {"env.step", "env.reset", "run.policy", "run.metrics", "run.answer", "learner.learn"}

pytestmark = pytest.mark.timeout(300)
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
MARKS = {"README": (), "cluster": (pytest.mark.cluster,)}  # the others are `slow`
TO_RUN = [
    pytest.param(page, id=page.stem, marks=MARKS.get(page.stem, (pytest.mark.slow,)))
    for page in PAGES
]


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    body: str
    line: int  # in the page, where its code begins
    heading: str
    skipped: bool

    @property
    def file(self) -> str | None:
        """The name of the file it is, if it is one."""
        match = FILE.match(self.body)
        return match[1] if match else None


class Reader:
    """Somebody who types what a page says, in a folder, where everything has been imported."""

    def __init__(self, forker: CommandForker, folder: Path):
        self.forker, self.folder = forker, folder

    def runs(self, script: str, path: Path | None = None, argv: Sequence[str] = ()) -> str:
        return self._saw(list(argv), 0, script=script, path=path)

    def types(self, command: str) -> str:
        code = int((EXIT.search(command) or [0, 0])[1])
        program, *words = shlex.split(command, comments=True)
        if program == "rookery" and not SHELL.intersection(command):
            return self._saw(words, code)
        return _ran(["bash", "-c", command], self.folder, code=code)

    def _saw(self, words: list[str], code: int, **what: Any) -> str:
        with tempfile.TemporaryDirectory() as elsewhere:
            said = Path(elsewhere) / "said"
            run = self.forker.start(words, self.folder, bare=True, said=said, **what)
            ended = run.wait(DEADLINE_S)
            assert ended == code, f"{words}\n{said.read_text()}"
            return said.read_text()


@pytest.fixture
def reader(_forker: CommandForker, tmp_path: Path) -> Iterator[Reader]:
    yield Reader(_forker, tmp_path)
    _forker.end_all()


@pytest.mark.parametrize("page", TO_RUN)
def test_every_snippet_of_a_page_runs_and_prints_what_the_page_says(page, reader, tmp_path):
    blocks = [block for block in _blocks(page) if not block.skipped]
    for block in blocks:
        if block.file:
            (tmp_path / block.file).write_text(block.body)

    printed = ""
    for block in blocks:
        if block.kind in RUN and not block.file:
            printed = RUN[block.kind](block, reader)
        elif block.kind == "text":
            assert _quoted(block.body, printed), f"line {block.line}: not in\n{printed}"


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_every_example_runs_in_an_empty_folder(example, reader, tmp_path):
    printed = reader.runs(example.read_text(), example, ARGUMENTS.get(example.stem, []))

    assert printed.strip()
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


@by_name
def test_every_link_leads_somewhere(page):
    links = [match[1] or match[2] for match in LINK.finditer(page.read_text())]

    for link in links:
        path, _, anchor = link.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


@by_name
def test_a_page_names_only_settings_that_exist(page):
    text = page.read_text()
    prose = BLOCK.sub("", text)
    spans = [span.partition("=")[0] for span in INLINE.findall(prose)]
    named = {span for span in spans if re.fullmatch(rf"(?:{SECTIONS})\.[a-z_]+", span)}
    meant = "\n".join(line for line in text.splitlines() if not EXIT.search(line))
    named |= set(re.findall(rf"(?<![\w.])((?:{SECTIONS})\.[a-z_]+)=", meant))

    files = {name for name in named if name.endswith((".py", ".json", ".yaml", ".html", ".md"))}
    assert named - files - ATTRIBUTES <= SETTINGS


@by_name
def test_a_page_names_only_flags_that_exist(page):
    spans = INLINE.findall(BLOCK.sub("", page.read_text()))
    named = {span.split()[0].partition("=")[0] for span in spans if span.startswith("--")}

    assert named - {"--shm-size"} <= _flags()


@by_name
def test_a_page_names_only_source_files_that_exist(page):
    made = {block.file for block in _blocks(page)}
    spans = INLINE.findall(BLOCK.sub("", page.read_text()))
    named = {span for span in spans if re.fullmatch(r"[\w/]+\.py", span)} - made

    assert [name for name in named if not any((r / name).exists() for r in ROOTS)] == []


def test_the_page_of_settings_is_what_the_settings_say():
    assert write_settings.PAGE.read_text() == write_settings.page()  # python docs/write_settings.py


def test_little_is_left_alone():
    left = [block for page in PAGES for block in _blocks(page) if block.skipped]
    code = [block for block in left if block.kind in RUN]

    assert len(code) <= 8


def test_every_message_of_the_troubleshooting_page_is_provoked(tmp_path, monkeypatch):
    quoted = {b.heading: b.body for b in _blocks(TROUBLE) if b.skipped and b.kind == "text"}

    assert set(quoted) == set(PROVOKE)
    for heading, provoke in PROVOKE.items():
        with monkeypatch.context() as patch:
            assert _quoted(quoted[heading], provoke(tmp_path, patch)), heading


def test_the_loops_by_hand_are_shown_as_they_are_run():
    example, page = (TREE / "examples" / "by_hand.py"), (TREE / "docs" / "by-hand.md")
    tree = ast.parse(example.read_text())
    loops = [node for node in tree.body if getattr(node, "name", "") in ("play", "learn")]

    assert len(loops) == 2
    for loop in loops:
        assert (ast.get_source_segment(example.read_text(), loop) or "?") in page.read_text()


def test_a_quotation_matches_line_by_line_and_in_order():
    printed = "a 1 b\nsecond\nthird line\n"

    assert _quoted("a ... b\nthird", printed)
    assert not _quoted("third\na ... b", printed)
    assert not _quoted("a ... c", printed)


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in BLOCK.finditer(text):
        before = text[: match.start()]
        heading = (re.findall(r"^#+ (.+)$", BLOCK.sub("", before), re.M) or [""])[-1]
        line = text[: match.start("body")].count("\n") + 1
        yield Block(match["kind"], match["body"], line, heading, match["why"] is not None)


def _python(block: Block, reader: Reader) -> str:
    return reader.runs(block.body)


def _bash(block: Block, reader: Reader) -> str:
    commands = block.body.replace("\\\n", " ").splitlines()
    typed = [command for command in commands if command.startswith(("rookery ", "python "))]
    return "".join(reader.types(command) for command in typed)


RUN: dict[str, Callable[[Block, Reader], str]] = {"python": _python, "bash": _bash}


def _ran(command: list[str], folder: Path, *, given: str = "", code: int = 0) -> str:
    """Returns what a program prints, on either stream, in this environment but not this tree."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == code, f"{command}\n{done.stdout}"
    return done.stdout


def _quoted(text: str, printed: str) -> bool:
    """Says whether the lines of `text` are printed, in their order; `...` is anything."""
    lines = [re.escape(line.strip()) for line in text.splitlines() if line.strip()]
    pattern = r"(?s:.*)\n?.*".join(line.replace(re.escape("..."), ".*") for line in lines)
    return re.search(pattern, printed) is not None


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _flags() -> set[str]:
    from importlib import import_module

    found = {"--help", "--version"}
    for verb, (module, _) in (VERBS | plugins.verbs()).items():
        parser = Parser(prog=verb, description=None)
        import_module(module).add_arguments(parser)
        found |= set(parser.flags)
    return found | set(benchmarks.parser().flags)


# What it takes to see a message that no command on the page brings about.


def _small_shm(folder: Path, patch: pytest.MonkeyPatch) -> str:
    from rookery.replay.ring import BOOKKEEPING, Ring

    def full(*args: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    patch.setattr("os.posix_fallocate", full)
    with pytest.raises(ConfigError) as refused:
        Ring.create(BOOKKEEPING, 1_000)
    return str(refused.value)


def _few_descriptors(folder: Path, patch: pytest.MonkeyPatch) -> str:
    from rookery.cli import doctor
    from rookery.runtime import machine
    from rookery.terminal import output
    from rookery.training.resources import refuse_descriptors

    patch.setattr(machine, "descriptors", lambda: (1024, 65536))
    with pytest.raises(ConfigError) as refused:
        refuse_descriptors(_with_actors(500))
    row = output.table([doctor._row(doctor.descriptors(*machine.descriptors()))], indent="")
    return "\n".join([f"rookery: error: {refused.value}", *row])


def _with_actors(num: int, **changes: Any) -> Config:
    return load("corridor", changes={"run.mode": "sync", "actor.num": num, **changes})


def _crowd(folder: Path, patch: pytest.MonkeyPatch) -> str:
    from rookery.runtime import machine
    from rookery.training.resources import crowding

    patch.setattr(machine, "cores", lambda: 2)
    return f"rookery: {crowding(_with_actors(46), '--actors')}"


def _bad_checkpoint(folder: Path, patch: pytest.MonkeyPatch) -> str:
    from rookery.checkpoints import checkpoint

    weights = {"w": np.arange(4.0)}
    content = checkpoint.Content(7, 1, True, True, {}, weights)
    whole = checkpoint.write(folder / "checkpoints", checkpoint.name_of(7), content)
    file = whole / checkpoint.WEIGHTS
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return "\n".join(f"rookery: {text}" for text in checkpoint.newest(whole.parent).broken)


def _full_disk(folder: Path, patch: pytest.MonkeyPatch) -> str:
    from rookery.checkpoints import checkpoint
    from rookery.checkpoints.saver import Saver

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(checkpoint, "write", full)
    saver = Saver(folder, keep=1)
    saver.best(checkpoint.Content(7, 1, True, True, {}, {"w": np.arange(4.0)}))
    saver.flush(timeout_s=10.0)
    saver.close()
    return f"warning (checkpoint): {saver.take_failures()[0]}"


def _folder_in_use(folder: Path, patch: pytest.MonkeyPatch) -> str:
    from rookery.checkpoints.run_folder import locked

    with locked(folder), pytest.raises(ConfigError) as refused:
        locked(folder).__enter__()
    return f"rookery: error: {refused.value}"


def _full_gpu(folder: Path, patch: pytest.MonkeyPatch) -> str:
    import torch

    from rookery.networks.device import pick_device
    from rookery.runtime import machine
    from rookery.training.build import build_parts
    from rookery.training.resources import refuse_devices

    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    parts = build_parts(load("corridor"))
    parts.learner.device = torch.device("cuda:0")
    patch.setattr(parts.learner, "_to_device", full)
    with pytest.raises(LostError) as lost:
        parts.learner.learn(None)  # type: ignore[arg-type]
    parts.close()

    with pytest.raises(ConfigError) as missing:
        pick_device("cuda:99")
    patch.setattr(torch.cuda, "device_count", lambda: 1)
    patch.setattr(machine, "gpu_memory", lambda number: machine.Space(8 * 10**9, 8 * 10**9))
    with pytest.raises(ConfigError) as small:
        refuse_devices(_with_actors(60, **{"actor.devices": ["cuda:0"]}))
    errors = (lost.value, small.value, missing.value)
    return "\n".join(f"rookery: error: {error}" for error in errors)


def _too_much_memory(folder: Path, patch: pytest.MonkeyPatch) -> str:
    from rookery.training.resources import ResourceEstimate, refuse_what_cannot_fit

    with pytest.raises(ConfigError) as refused:
        refuse_what_cannot_fit(ResourceEstimate(1 << 60, 0, 0, 0), Config(), folder)
    return f"rookery: error: {refused.value}"


def _second_run(folder: Path, patch: pytest.MonkeyPatch) -> str:
    from rookery.checkpoints.run_folder import describe

    describe(folder, Config())
    with pytest.raises(ConfigError) as refused:
        describe(folder, Config())
    return f"rookery: error: {refused.value}"


def _finished_run(folder: Path, patch: pytest.MonkeyPatch) -> str:
    from rookery.checkpoints.run_folder import write_result
    from rookery.evaluation.backend import RunRequest
    from rookery.training.launch import finished

    said: list[str] = []
    patch.setattr("rookery.training.launch.notice", said.append)
    answer = {"solved": False, "env_steps": 50_000, "episodes": 9, "reason": "env_steps"}
    write_result(folder, answer)
    assert finished(Config(), RunRequest(resume=folder)) is not None
    return f"rookery: {said[0]}"


PROVOKE: dict[str, Callable[[Path, pytest.MonkeyPatch], str]] = {
    '"Too many open files"': _few_descriptors,
    "`/dev/shm` is too small (docker)": _small_shm,
    '"is in use by pid ..."': _folder_in_use,
    "A checkpoint is skipped": _bad_checkpoint,
    "GPU out of memory": _full_gpu,
    '"will take turns"': _crowd,
    "High memory usage": _too_much_memory,
    '"already holds a run"': _second_run,
    '"is over"': _finished_run,
    '"could not write to ..."': _full_disk,
}
