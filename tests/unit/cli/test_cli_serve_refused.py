"""A refused `rookery serve` leaves the disk as it was."""

from pathlib import Path

import pytest

from rookery.cli.main import main
from rookery.config.load import load_run
from rookery.server.parameter_server import ParameterServer
from rookery.server.run_server import KEYS, LEDGER, STORE, Watch

pytest.importorskip("uvicorn")
ELSEWHERE = ["--bind", "192.0.2.1:0"]  # an address of nobody's, over which plain HTTP is refused
PROMISE = {"--target-epsilon": "8", "--delta": "1e-3", "--noise": "1", "--clip": "1"}
PRIVATE = ["--mode", "federated", *(word for pair in PROMISE.items() for word in pair)]
PRIVATE += ["--sample-rate", "1", "--clients", "9"]


def refused(run_dir: Path, *flags: str) -> bool:
    argv = ["serve", "--scenario", "corridor", "--run-dir", str(run_dir), "--json"]
    return main([*argv, *flags]) == 2


def there(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "flags",
    [
        ELSEWHERE,
        [*PRIVATE, *ELSEWHERE],
        [*PRIVATE, "--delta", "0.5"],
        ["--aggregation", "krum", "--quorum", "2"],
        ["--tls-cert", "nowhere.pem", "--tls-key", "nowhere.key"],
    ],
)
def test_nothing_is_left_of_a_server_that_never_was(flags, tmp_path):
    pytest.importorskip("dp_accounting")
    assert refused(tmp_path / "runs" / "server", *flags)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays_and_so_do_keys(tmp_path):
    assert main(["serve", "keys", "add", "alice", "--run-dir", str(tmp_path)]) == 0
    before = there(tmp_path)

    assert refused(tmp_path, *ELSEWHERE)

    assert there(tmp_path) == before
    assert sorted(before) == ["alice.key", KEYS]


@pytest.mark.parametrize("kept", [STORE, LEDGER])
def test_what_an_earlier_server_left_is_not_cleared_away(kept, tmp_path):
    """Without the file that says what was served: somebody has copied the rest."""
    if kept == STORE:
        from rookery.config.load import load
        from rookery.server.advertised_settings import portable
        from rookery.server.run_server import ServedPolicy

        arrays = ServedPolicy(portable(load("corridor"))).learner.parameters()
        settings = {"optimizer": "adam", "checkpoint_path": tmp_path / STORE}
        ParameterServer(arrays, **settings).close()
    else:
        (tmp_path / LEDGER).write_text("damaged")
    before = there(tmp_path)

    assert refused(tmp_path, *ELSEWHERE)

    assert {name: raw for name, raw in there(tmp_path).items() if name in before} == before


def test_a_refused_restart_changes_nothing_of_what_was_served(tmp_path, monkeypatch):
    """With other settings what is there could not be evaluated any more."""
    monkeypatch.setattr(Watch, "until_over", lambda watch: "limit")
    argv = ["serve", "--scenario", "corridor", "--run-dir", str(tmp_path), "--bind", "localhost:0"]
    assert main([*argv, "--set", "net.hidden=[4]"]) == 0
    before = there(tmp_path)

    assert main([*argv, "--set", "net.hidden=[8]"]) == 3
    assert main([*argv, "--set", "net.hidden=[4]", "--mode", "federated"]) == 3
    assert refused(tmp_path, "--set", "net.hidden=[4]", "--set", "actor.chunk=7", *ELSEWHERE)

    assert "checkpoints" in {Path(name).parts[0] for name in before}
    assert there(tmp_path) == before


def test_a_restart_that_is_not_refused_is_served_with_its_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(Watch, "until_over", lambda watch: "limit")
    argv = ["serve", "--scenario", "corridor", "--run-dir", str(tmp_path), "--bind", "localhost:0"]
    for chunk in (5, 7):
        assert main([*argv, "--set", f"actor.chunk={chunk}"]) == 0

    assert load_run(tmp_path).actor.chunk == 7


def test_a_run_folder_without_a_name_is_refused(capfd):
    assert main(["serve", "--scenario", "corridor", "--run-dir", ""]) == 2
    assert "--run-dir: needs the name of a folder" in capfd.readouterr().err
