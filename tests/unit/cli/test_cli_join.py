"""`rookery join`: how a client proves its name, from its flags to the connection."""

import argparse
from pathlib import Path

import pytest

from rookery.cli.main import main
from rookery.cli.server import join
from rookery.errors import ConfigError
from rookery.server import run_client
from rookery.terminal.arguments import Parser, parse


def parsed(*argv: str) -> argparse.Namespace:
    parser = Parser(prog="rookery join", description=None)
    join.add_arguments(parser)
    return parse(parser, ["https://localhost:1", "--client", "alice", *argv])


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "alice.key"
    path.write_text("k" * 40 + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ((), "give --key-file.*or --tls-cert"),
        (("--tls-key", "own.key"), "--tls-key was given without --tls-cert"),
        (("--key-file", "nowhere"), "--key-file nowhere cannot be read.*keys add"),
    ],
)
def test_a_client_that_cannot_prove_its_name_is_refused_with_the_flags(flags, why):
    with pytest.raises(ConfigError, match=why):
        join.run(parsed(*flags))


def test_a_key_a_certificate_or_both_reach_the_connection(key_file: Path, monkeypatch):
    asked: list[run_client.Asked] = []

    def stop(given: run_client.Asked) -> None:
        asked.append(given)
        raise ConfigError("far enough")

    monkeypatch.setattr(run_client, "join", stop)
    key, certified = ("--key-file", str(key_file)), ("--tls-cert", "a.pem", "--tls-key", "a.key")
    for flags in (key, certified, (*key, *certified)):
        with pytest.raises(ConfigError, match="far enough"):
            join.run(parsed(*flags))

    own = (Path("a.pem"), Path("a.key"))
    assert [each.key for each in asked] == ["k" * 40, None, "k" * 40]
    assert [(each.certificate, each.private_key) for each in asked] == [(None, None), own, own]


def test_files_that_are_no_certificate_are_named_with_their_flags(tmp_path: Path, capsys):
    for name in ("a.pem", "a.key"):
        (tmp_path / name).write_text("nothing")
    own = ["--tls-cert", str(tmp_path / "a.pem"), "--tls-key", str(tmp_path / "a.key")]

    assert main(["join", "https://localhost:1", "--client", "alice", *own]) == 2
    assert "(--tls-cert)" in capsys.readouterr().err
