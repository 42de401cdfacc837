"""Deployment: an image, a compose file and a systemd unit, all of whose commands exist."""

import argparse
import json
import re
import shlex
import tomllib
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from rookery.cli.server import serve, serve_keys
from rookery.config.load import load
from rookery.terminal.arguments import Parser, parse

TREE = Path(__file__).parents[3]
DEPLOY = TREE / "deploy"
UNIT = DEPLOY / "rookery-server@.service"
COMPOSE = DEPLOY / "compose.yaml"


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and their arguments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def image() -> dict[str, str]:
    return dict(instructions((DEPLOY / "Dockerfile").read_text()))


def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["server"]
    return found


def unit() -> RawConfigParser:
    parser = RawConfigParser(strict=False, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text().replace("\\\n", " "))
    return parser


def unit_command() -> list[str]:
    words = shlex.split(unit()["Service"]["ExecStart"].replace("%i", "cartpole"))
    assert Path(words[0]).name == "rookery"
    return words[1:]


def commands_in_comments() -> list[list[str]]:
    comments = [line for path in (UNIT, COMPOSE) for line in path.read_text().splitlines()]
    found = [re.search(r"^#.*\brookery (serve keys .*)", line) for line in comments]
    return [shlex.split(match[1]) for match in found if match]


def parsed(words: list[str]) -> argparse.Namespace:
    """Parses a command as `rookery` does; a flag that does not exist is an error."""
    assert words[0] == "serve"
    verb, given = (serve_keys, words[2:]) if words[1] == "keys" else (serve, words[1:])
    parser = Parser(prog="rookery serve", description=None)
    verb.add_arguments(parser)
    return parse(parser, given)


@pytest.mark.parametrize("words", [unit_command(), service()["command"]], ids=["unit", "compose"])
def test_the_server_is_reached_from_other_hosts_over_tls_and_keeps_its_files(words):
    args = parsed(words)

    plan = serve.plan_of(args, load(args.scenario))
    assert (plan.host, plan.port) == ("0.0.0.0", 8888)
    assert plan.certificate
    assert plan.private_key
    assert plan.run_dir.is_absolute()


def test_the_commands_in_comments_exist():
    commands = commands_in_comments()

    assert len(commands) == 2
    runs = {str(parsed(words).run_dir) for words in commands}
    assert runs == {str(parsed(words).run_dir) for words in (unit_command(), service()["command"])}


def test_the_image_has_the_command_and_the_port_of_the_server():
    made = image()

    assert json.loads(made["ENTRYPOINT"]) == ["rookery"]
    with pytest.raises(SystemExit) as left:
        parsed(json.loads(made["CMD"]))
    assert not left.value.code  # its help
    assert service()["ports"] == [f"{made['EXPOSE']}:{made['EXPOSE']}"]
    assert made["USER"] == "rookery"


def test_the_image_is_built_of_files_and_extras_that_exist():
    lines = instructions((DEPLOY / "Dockerfile").read_text())
    copied = [name for word, rest in lines if word == "COPY" for name in rest.split()[:-1]]
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    asked = [re.search(r"\[([\w,]+)\]", rest) for word, rest in lines if word == "RUN"]

    assert all((TREE / name).exists() for name in copied)
    assert [m[1].split(",") for m in asked if m] == [["server", "dp"]]
    assert {"server", "dp"} <= set(project["optional-dependencies"])


def test_the_volume_the_secrets_and_the_build_of_the_compose_file_are_there():
    whole = yaml.safe_load(COMPOSE.read_text())
    own = service()

    assert (DEPLOY / own["build"]["context"] / own["build"]["dockerfile"]).resolve().exists()
    assert {volume.split(":")[0] for volume in own["volumes"]} == set(whole["volumes"])
    assert set(own["secrets"]) == set(whole["secrets"])
    named = [word for word in own["command"] if "/run/secrets/" in word]
    assert {Path(word.partition("=")[2]).name for word in named} == set(own["secrets"])


def test_the_user_of_the_image_that_must_be_able_to_read_the_secrets_is_said():
    lines = (DEPLOY / "Dockerfile").read_text()
    own = service()["build"]["args"]["ROOKERY_UID"]
    comments = "\n".join(re.findall("^#.*", COMPOSE.read_text(), re.MULTILINE))

    default = re.search(r"^ARG ROOKERY_UID=(\d+)$", lines, re.MULTILINE)
    assert default is not None
    assert own == f"${{ROOKERY_UID:-{default[1]}}}"
    assert "useradd --create-home --uid $ROOKERY_UID rookery" in lines
    assert f"chown {default[1]} server.pem server.key" in comments


def test_the_unit_does_not_restart_a_command_that_is_wrong_and_gives_time_for_a_checkpoint():
    settings = unit()["Service"]

    assert settings["Restart"] == "on-failure"
    assert settings["RestartPreventExitStatus"] == "2"
    assert settings["SuccessExitStatus"] == "143"
    assert int(settings["TimeoutStopSec"]) >= 60
    assert str(parsed(unit_command()).run_dir).startswith(settings["WorkingDirectory"])
