"""`rookery export`: which file, in which format, and what is refused before anything is played."""

from pathlib import Path

import pytest

from rookery.cli.export import FORMATS, summary
from rookery.cli.main import main
from rookery.config.load import RUN_FILE, dump, load
from rookery.config.schema import Config
from rookery.errors import ConfigError
from rookery.export import export_policy as exports
from rookery.export import onnx
from rookery.export.export_policy import export
from rookery.terminal import arguments


@pytest.mark.parametrize(
    ("out", "format", "file", "found"),
    [
        (None, None, "runs/a/policy.safetensors", "safetensors"),
        (None, "onnx", "runs/a/policy.onnx", "onnx"),
        ("b.onnx", None, "b.onnx", "onnx"),
        ("b.weights", "safetensors", "b.weights", "safetensors"),
    ],
)
def test_the_format_is_what_the_name_or_the_flag_says(out, format, file, found):
    usual = Path("runs/a/policy")

    assert arguments.target(usual, out, format, FORMATS) == (Path(file), found)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--out", "b.pt"], "does not end in .safetensors or .onnx"),
        (["--out", "b.onnx", "--format", "safetensors"], "drop one of them"),
        (["--format", "pickle"], "invalid choice"),
        (["--checkpoint", "newest"], "best, last or a number"),
        ([], "no run folder 'runs/absent'"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(flags, said, capsys):
    assert main(["export", "runs/absent", *flags]) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_a_place_that_holds_no_file_is_refused_before_anything_is_played(tmp_path):
    with pytest.raises(ConfigError, match="is a folder; an exported policy is a file"):
        export(tmp_path / "no run", tmp_path)


def test_a_missing_package_is_named_with_the_extra_that_brings_it(tmp_path, monkeypatch, capsys):
    (tmp_path / RUN_FILE).write_text(dump(Config()))
    monkeypatch.setattr(onnx, "PACKAGES", ("onnx", "no_such_package"))

    assert main(["export", str(tmp_path), "--format", "onnx"]) == 2
    said = capsys.readouterr().err
    assert "no_such_package, which is not installed; pip install 'rookery[onnx]'" in said


def test_a_run_of_another_backend_is_refused_with_who_can_open_it(tmp_path, capsys):
    (tmp_path / RUN_FILE).write_text(dump(load(changes={"backend": "sb3", "sb3.algorithm": "DQN"})))
    (tmp_path / "model.zip").touch()

    assert main(["export", str(tmp_path)]) == 2
    assert "load it with SB3" in capsys.readouterr().err


def test_a_run_without_a_checkpoint_is_refused(tmp_path, capsys):
    (tmp_path / RUN_FILE).write_text(dump(Config()))

    assert main(["export", str(tmp_path)]) == 3
    assert "no checkpoint that verifies" in capsys.readouterr().err


def test_every_format_has_a_writer_and_a_reader():
    assert tuple(exports.FORMATS) == FORMATS


def test_the_answer_says_where_the_file_is_and_how_it_was_checked():
    answer = {"file": "a.onnx", "format": "onnx", "bytes": 2_048, "checked": 256}
    answer |= {"largest_difference": 1.19e-7, "ties": 2}

    assert summary(answer) == [
        "a.onnx: 2.0 KB of onnx",
        "  the same actions for 256 observations, except for 2 ties; largest difference 1e-07",
    ]
