"""The command `rookery`: finds the verb, runs it, and turns what happened into an exit code.

Only the verb that was asked for is imported, and its heavy parts only once it runs, so that every
`--help` answers at once.
"""

import os
import sys
from collections.abc import Sequence

from rookery.errors import ConfigError, EnvError, RookeryError

VERBS: dict[str, tuple[str, str]] = {
    "train": ("rookery.cli.train", "train an agent, or go on with a run"),
    "share": ("rookery.cli.share", "train several runs that learn from each other"),
    "serve": ("rookery.cli.serve", "serve parameters to clients that train them together"),
    "join": ("rookery.cli.join", "train together with others, over a server"),
    "evaluate": ("rookery.cli.evaluate", "play episodes with a trained agent and report the score"),
    "record": ("rookery.cli.record", "play episodes with a trained agent and write a film"),
    "export": ("rookery.cli.export", "write a trained agent's policy to one file, and check it"),
    "timeline": ("rookery.cli.timeline", "draw what each process of a run did when"),
    "compare": ("rookery.cli.compare", "compare groups of runs, with intervals"),
    "ladder": ("rookery.cli.ladder", "rate the snapshots of a self-play run against each other"),
    "play": ("rookery.cli.play", "play against a trained agent in the terminal"),
    "pathfinding": ("rookery.cli.pathfinding", "many agents on a grid: evaluate, show, demo"),
    "import": ("rookery.cli.import_", "turn settings of the RL Baselines3 Zoo into a scenario"),
    "list": ("rookery.cli.list", "show scenarios, algorithms and settings"),
    "doctor": ("rookery.cli.doctor", "show what this machine can do"),
    "clean": ("rookery.cli.clean", "remove what dead runs have left behind"),
    "bench": ("rookery.cli.bench", "measure speed, beside other libraries"),
}
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Without `argv` this is the whole process: the streams are made tolerant first, and a Ctrl+C
    that comes after the work is done ends the process without a traceback.
    """
    try:
        from rookery.cli import output, signals

        if argv is None:
            signals.leave_when_terminated()
            output.tolerate()
        code = _answer(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        code = _complain("interrupted", INTERRUPTED)
    if argv is None:
        from rookery.cli import output, signals  # an interrupt may have come before the first one

        signals.leave_at_once()
        output.flush()
        _leave_ray_behind(code)
    return code


def _leave_ray_behind(code: int) -> None:
    """Ends here where a Ray without a head hangs in this process: it would crash us a moment later,
    and the exit code would be that of the crash."""
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
    verb = argv[0] if argv else ""
    if verb not in VERBS:
        return _without_verb(verb)
    from importlib import import_module

    from rookery.cli.arguments import Parser, parse

    module = import_module(VERBS[verb][0])
    parser = Parser(prog=f"rookery {verb}", description=module.__doc__)
    module.add_arguments(parser)
    args = parse(parser, argv[1:])
    if os.getcwd() not in sys.path:  # `module:Class` means the user's own files first of all
        sys.path.insert(0, os.getcwd())
    code: int = module.run(args)
    return code


def _show_cause(error: RookeryError) -> None:
    """Shows where a user's own code failed; for everything else the message says enough."""
    for note in getattr(error, "__notes__", ()):  # an actor's own traceback
        print(note, file=sys.stderr)
    if isinstance(error, EnvError) and error.__cause__ is not None:
        import traceback

        traceback.print_exception(error.__cause__)


def _without_verb(given: str) -> int:
    from rookery import __version__
    from rookery.cli.output import say

    if given == "--version":
        say(f"rookery {__version__}")
        return 0
    if given in ("-h", "--help"):
        say(_help())
        return 0
    raise _no_verb(given)


def _no_verb(given: str) -> ConfigError:
    from rookery.config.parse import nearest

    allowed = f"allowed: {', '.join(VERBS)}; `rookery --help` explains them"
    if not given:
        return ConfigError(f"no verb was given; {allowed}")
    near = nearest(given, list(VERBS))
    hint = f"did you mean {near!r}? " if near else ""
    return ConfigError(f"{given!r} is no verb of rookery; {hint}{allowed}")


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:{width}}  {about}" for verb, (_, about) in VERBS.items())
    return (
        "usage: rookery VERB ...\n\n"
        "Reinforcement learning with many actors and one learner.\n\n"
        f"verbs:\n{verbs}\n\n"
        "`rookery VERB --help` explains one; `rookery --version` says which version this is.\n"
        "Start here: rookery train cartpole"
    )


def _complain(message: str, code: int) -> int:
    print(f"rookery: {message}", file=sys.stderr, flush=True)
    return code
