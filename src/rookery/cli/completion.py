"""Print a script with which a shell completes verbs, flags, scenarios and run folders.

The script answers by itself, without Python. Print it anew after an update.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from rookery import plugins
from rookery.terminal import output
from rookery.terminal.arguments import Parser

EXAMPLES = """\
examples:
  eval "$(rookery completion bash)"              in ~/.bashrc
  eval "$(rookery completion zsh)"               in ~/.zshrc, after compinit
  rookery completion fish > ~/.config/fish/completions/rookery.fish
"""
BASH = """\
_rookery() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words="{verbs}" runs=
  [ "$COMP_CWORD" -gt 1 ] && case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [ -n "$runs" ]; then COMPREPLY+=($(compgen -d -- "${{word:-runs/}}")); fi
}}
complete -o default -F _rookery rookery
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
FISH = """\
complete -c rookery -n __fish_use_subcommand -f -a '{verbs}'
{cases}
"""


class Words(NamedTuple):
    """What may follow a verb."""

    verb: str
    flags: list[str]
    names: list[str]  # of its argument: scenarios, or what it has to choose from
    runs: bool  # whether its argument is a run folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "shell that will read the script (required)"
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help=about)


def run(args: argparse.Namespace) -> int:
    found = [*completions()]
    verbs = " ".join(words.verb for words in found)
    if args.shell == "fish":
        output.say(FISH.format(verbs=verbs, cases="\n".join(map(_fish, found))).rstrip())
        return 0
    script = BASH.format(verbs=verbs, cases="\n".join(map(_bash, found))).rstrip()
    output.say((ZSH if args.shell == "zsh" else "") + script)
    return 0


def completions() -> Iterator[Words]:
    """Yields what may follow each verb, by its parser."""
    from rookery.cli.main import VERBS
    from rookery.config.load import scenarios

    for verb, (module, _) in (VERBS | plugins.verbs()).items():
        parser = Parser(prog=verb, description=None)
        plugins.load_module(module).add_arguments(parser)
        own = [action for action in parser._actions if not action.option_strings]
        metavars = {str(action.metavar) for action in own}
        names = [str(choice) for action in own for choice in action.choices or ()]
        names += [two.split()[1] for two in VERBS if two.startswith(f"{verb} ")]  # `serve keys`
        names += scenarios() if "SCENARIO" in metavars else []
        if " " not in verb:
            yield Words(verb, parser.flags, names, not metavars.isdisjoint({"RUN", "FOLDER"}))


def _bash(words: Words) -> str:
    runs = " runs=1" if words.runs else ""
    return f'    {words.verb}) words="{" ".join([*words.flags, *words.names])}"{runs} ;;'


def _fish(words: Words) -> str:
    when = f"complete -c rookery -n '__fish_seen_subcommand_from {words.verb}'"
    lines = [f"{when} -l {flag.removeprefix('--')}" for flag in words.flags]
    lines += [f"{when} -f -a '{' '.join(words.names)}'"] if words.names else []
    lines += [f"{when} -f -a '(__fish_complete_directories runs/)'"] if words.runs else []
    return "\n".join(lines)
