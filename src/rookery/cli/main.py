"""Entry point of the command `rookery`: runs a subcommand (verb), and returns its exit code.

Only the requested subcommand is imported, and its large dependencies only when it runs, so that
`--help` is fast.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from rookery import plugins
from rookery.errors import ConfigError, EnvError, RookeryError
from rookery.plugins import Verb

VERBS: dict[str, Verb] = {
    "train": Verb("rookery.cli.train", "train an agent, or resume a stopped run"),
    "share": Verb("rookery.cli.share", "train several runs that share their replay buffers"),
    "serve": Verb("rookery.cli.server.serve", "start a parameter server for federated learning"),
    "serve keys": Verb("rookery.cli.server.serve_keys", "add and remove clients of such a server"),
    "join": Verb("rookery.cli.server.join", "train as a client of a parameter server"),
    "evaluate": Verb(
        "rookery.cli.evaluate", "play episodes with a trained agent and report the return"
    ),
    "runs": Verb("rookery.cli.runs", "list runs: what was trained, and its scores"),
    "show": Verb("rookery.cli.show", "show one run: results, machine, faults, settings"),
    "record": Verb("rookery.cli.record", "record episodes of a trained agent as GIF or video"),
    "export": Verb(
        "rookery.cli.export", "write a trained agent's policy to one file, and check it"
    ),
    "report": Verb("rookery.cli.report", "write a report of runs: results, curves, settings"),
    "timeline": Verb("rookery.cli.timeline", "draw a chart of the work of a run's processes"),
    "compare": Verb("rookery.cli.compare", "compare groups of runs, with confidence intervals"),
    "ladder": Verb("rookery.cli.ladder", "rate the weight snapshots of a self-play run by Elo"),
    "play": Verb("rookery.cli.play", "play against a trained agent in the terminal"),
    "new": Verb("rookery.cli.new", "write the skeleton of an environment, algorithm or scenario"),
    "list": Verb("rookery.cli.list", "show scenarios, algorithms and settings"),
    "doctor": Verb("rookery.cli.doctor", "check this machine: versions, CPUs, memory, GPUs"),
    "clean": Verb("rookery.cli.clean", "remove files that crashed or killed runs have left"),
    "completion": Verb("rookery.cli.completion", "print a script for completion in the shell"),
}
START = """\
  rookery train cartpole                     train DQN on CartPole until it is solved
  rookery train ppo --env Acrobot-v1         another algorithm, another environment
  rookery runs                               list what was trained, and its scores"""
INTERRUPTED = 130  # 128 + SIGINT, the shells' convention


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand of `rookery` and returns its exit code.

    Without `argv` it takes the arguments of the process. It then also installs signal handlers, so
    that SIGTERM, and Ctrl+C after the end of the subcommand, end the process without a traceback,
    and makes the output streams print escapes for characters that they cannot encode.
    """
    try:
        from rookery.terminal import abrupt_exit, output

        if argv is None:
            abrupt_exit.start_command()
            output.tolerate()
        code = _answer(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        code = _complain("interrupted", INTERRUPTED)
        # Python ends itself with SIGINT if Ctrl+C came in code that was compiled from a text, as
        # dataclasses compile theirs; it forgets that when it runs another text.
        exec("")
    if argv is None:
        # again: an interrupt may have come before the first import
        from rookery.terminal import abrupt_exit, output

        abrupt_exit.leave_at_once()
        output.flush()
        _leave_ray_behind(code)
    return code


def _leave_ray_behind(code: int) -> None:
    """Ends the process at once with exit code `code`, if its Ray cluster has lost the head node.

    At a normal exit, Ray would crash the process, with another exit code.
    """
    engine = sys.modules.get("rookery.engines.ray")
    if engine is not None and engine.left_behind:
        os._exit(code)


def _answer(argv: list[str]) -> int:
    try:
        return _dispatch(argv)
    except RookeryError as error:
        _show_cause(error)
        return _complain(f"error: {error}", error.exit_code)
    except SystemExit as left:  # argparse after --help
        return left.code if isinstance(left.code, int) else int(left.code is not None)


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["help"]:  # help VERB is VERB --help
        argv = [*argv[1:], "--help"]
    if " ".join(argv[:2]) in VERBS:  # a verb of two words
        argv = [" ".join(argv[:2]), *argv[2:]]
    verb = argv[0] if argv else ""
    found = VERBS.get(verb) or plugins.verbs().get(verb)
    if found is None:
        return _without_verb(verb)
    from rookery.terminal.arguments import Parser, parse

    module: Any = plugins.load_module(found.module)
    parser = Parser(prog=f"rookery {verb}", description=module.__doc__)
    parser.epilog = getattr(module, "EXAMPLES", None)
    module.add_arguments(parser)
    args = parse(parser, argv[1:])
    if os.getcwd() not in sys.path:  # so that `module:Class` finds the user's own files first
        sys.path.insert(0, os.getcwd())
    code: int = module.run(args)
    return code


def _show_cause(error: RookeryError) -> None:
    """Prints the traceback of the exception that caused an error, such as one in an environment."""
    for note in getattr(error, "__notes__", ()):  # traceback of an actor process
        print(note, file=sys.stderr)
    if isinstance(error, EnvError) and error.__cause__ is not None:
        import traceback

        traceback.print_exception(error.__cause__)


def _without_verb(given: str) -> int:
    from rookery.terminal.output import say
    from rookery.version import __version__

    if given == "--version":
        say(f"rookery {__version__}")
        return 0
    if given in ("", "help", "-h", "--help"):
        say(_help())
        return 0
    from rookery.config.checks import nearest

    verbs = list(VERBS | plugins.verbs())
    near = nearest(given, verbs)
    hint = f"did you mean {near!r}? " if near else ""
    raise ConfigError(
        f"{given!r} is not a verb of rookery; {hint}allowed: {', '.join(verbs)}; "
        "`rookery --help` explains them"
    )


def _help() -> str:
    known = VERBS | plugins.verbs()
    width = max(map(len, known))
    verbs = "\n".join(f"  {name:{width}}  {verb.about}" for name, verb in known.items())
    return (
        "usage: rookery VERB ...\n\n"
        "Reinforcement learning with many actors and one learner.\n\n"
        f"verbs:\n{verbs}\n\n"
        f"to start with:\n{START}\n\n"
        "`rookery help VERB` explains a verb; `rookery --version` prints the version."
    )


def _complain(message: str, code: int) -> int:
    print(f"rookery: {message}", file=sys.stderr, flush=True)
    return code
