"""A damaged checkpoint is never loaded: the one before it is, and it is said which was skipped."""

import json
import os
import pickle
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inline_runs import Inline, begin, finish, resume, stop_at
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import ARRAYS, MANIFEST, STATE, WEIGHTS, Digest
from rookery.checkpoints.load_weights import pick_checkpoint
from rookery.errors import CheckpointError
from rookery.training import launch
from whole_checkpoints import intact

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a run that was interrupted, with three checkpoints."""
    run_dir = tmp_path_factory.mktemp("original") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "EvaluationClient", Inline)
        with begin(run_dir, {"checkpoint.keep": 3}) as training_run:
            assert finish(training_run, stop_at(180))["reason"] == "interrupted"
    assert len(checkpoint.folders(run_dir / "checkpoints")) == 3
    return run_dir


@pytest.fixture
def run_dir(original: Path, tmp_path: Path) -> Path:
    """Returns a copy of it to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def newest(run_dir: Path) -> Path:
    return checkpoint.folders(run_dir / "checkpoints")[0]


def assert_falls_back(run_dir: Path) -> str:
    """The newest checkpoint is skipped, the one before it taken; returns why."""
    first, second, *_ = checkpoint.folders(run_dir / "checkpoints")
    search = checkpoint.newest(run_dir / "checkpoints")

    assert search.found is not None
    assert search.found.folder == second
    (why,) = search.broken
    assert why.startswith(f"{first.name} skipped: ")
    return why


def segment(folder: Path) -> Path:
    return sorted(folder.glob("rows-*"))[-1]


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a manifest and makes its checksum fit again, as an attacker would."""
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["sha256"]
    change(manifest)
    manifest["sha256"] = checkpoint._seal(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_an_undamaged_run_has_nothing_to_skip(run_dir):
    search = checkpoint.newest(run_dir / "checkpoints")

    assert search.found is not None
    assert search.found.folder == newest(run_dir)
    assert (search.broken, search.unfit) == ([], [])


@pytest.mark.parametrize("name", [MANIFEST, STATE, ARRAYS, WEIGHTS, "rows"])
def test_a_file_of_any_other_length_is_noticed(run_dir, name):
    path = segment(newest(run_dir)) if name == "rows" else newest(run_dir) / name
    whole = path.read_bytes()

    for size in {0, 1, 7, len(whole) // 3, len(whole) // 2, len(whole) - 1, len(whole) + 1}:
        path.unlink()  # a segment is shared with its neighbours
        path.write_bytes((whole + b"\0")[:size])
        assert_falls_back(run_dir)


def test_a_manifest_cut_anywhere_is_noticed(run_dir):
    path = newest(run_dir) / MANIFEST
    whole = path.read_bytes()

    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            intact(path.parent)


def test_a_bit_that_flips_anywhere_in_a_manifest_is_noticed(run_dir):
    path, rng = newest(run_dir) / MANIFEST, random.Random(0)
    whole = path.read_bytes()

    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            intact(path.parent)


@pytest.mark.parametrize("name", [STATE, ARRAYS, WEIGHTS, "rows"])
def test_a_bit_that_flips_in_a_file_is_noticed(run_dir, name):
    path = segment(newest(run_dir)) if name == "rows" else newest(run_dir) / name
    whole, rng = path.read_bytes(), random.Random(name)

    for at in {0, 8, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(20))}:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        path.unlink()
        path.write_bytes(damaged)
        assert f"{path.name} does not match its checksum" in assert_falls_back(run_dir)


def _missing(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _extra(folder: Path) -> None:
    (folder / "more.safetensors").write_bytes(b"")


def _link(folder: Path) -> None:
    path = folder / WEIGHTS
    path.rename(folder.parent.parent / "elsewhere")
    path.symlink_to(folder.parent.parent / "elsewhere")


def _manifest_link(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to("/dev/zero")


def _folder_as_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def _other_manifest(folder: Path) -> None:
    other = checkpoint.folders(folder.parent)[-1]
    shutil.copy(other / MANIFEST, folder / MANIFEST)


def _outside(name: str) -> Damage:
    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = {"size": 0, "sha256": Digest.of(b"").sha256}

    return lambda folder: forge(folder, change)


def _segment_outside(folder: Path) -> None:
    forge(folder, lambda manifest: manifest["segments"].append(["../../config.yaml", 0, 1]))


def _newer(folder: Path) -> None:
    forge(folder, lambda manifest: manifest.update(format=checkpoint.FORMAT + 1, rookery="9.9.9"))


def _without(key: str) -> Damage:
    return lambda folder: forge(folder, lambda manifest: manifest.pop(key) and None)


def _nonsense(folder: Path) -> None:
    forge(folder, lambda manifest: manifest.update(files=[1, 2, 3]))


def _brackets(folder: Path) -> None:
    (folder / MANIFEST).write_text("[" * 1_000_000)


def _huge(folder: Path) -> None:
    os.truncate(folder / MANIFEST, 200 << 30)  # a hole: it takes no space


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no manifest": (_missing(MANIFEST), "MANIFEST.json is not a plain file"),
    "no weights": (_missing(WEIGHTS), "files differ"),
    "no state": (_missing(STATE), "files differ"),
    "one file more": (_extra, "more.safetensors"),
    "a link": (_link, "is a link"),
    "a link to a device": (_manifest_link, "MANIFEST.json is a link"),
    "a file in its place": (_folder_as_file, "MANIFEST.json is not a plain file"),
    "the manifest of another": (_other_manifest, "skipped: "),
    "a path that climbs": (_outside("../../config.yaml"), "files outside of it"),
    "an absolute path": (_outside("/etc/hostname"), "files outside of it"),
    "a segment that climbs": (_segment_outside, "files outside of it"),
    "a newer format": (_newer, f"format {checkpoint.FORMAT + 1}, written by Rookery 9.9.9"),
    "no list of files": (_without("files"), "cannot be read"),
    "no counters": (_without("env_steps"), "lacks ['env_steps']"),
    "nonsense": (_nonsense, "skipped: "),
    "a million brackets": (_brackets, "cannot be read"),
    "a manifest of 200 GB": (_huge, "too large"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_not_one_is_skipped_with_the_reason(run_dir, damage):
    spoil, reason = DAMAGES[damage]
    began = time.monotonic()

    spoil(newest(run_dir))

    assert reason in assert_falls_back(run_dir)
    assert time.monotonic() - began < 5.0


class Canary:
    """What an attacker would send: unpickling it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("name", [WEIGHTS, ARRAYS, STATE, "rows"])
def test_a_pickle_is_never_opened_even_where_every_checksum_fits(
    run_dir, name, tmp_path, monkeypatch
):
    monkeypatch.setattr(launch, "EvaluationClient", Inline)
    canary = tmp_path / "canary"
    path = segment(newest(run_dir)) if name == "rows" else newest(run_dir) / name
    payload = pickle.dumps(Canary(canary))
    path.unlink()
    path.write_bytes(payload)
    assert_falls_back(run_dir)
    digest = {"size": len(payload), "sha256": Digest.of(payload).sha256}
    forge(newest(run_dir), lambda manifest: manifest["files"].update({path.name: digest}))

    with pytest.raises(CheckpointError):
        intact(newest(run_dir)).weights() if name == WEIGHTS else _resumed(run_dir)

    assert not canary.exists()


def _resumed(run_dir: Path) -> None:
    with resume(run_dir):
        pass


def test_a_resumed_run_goes_on_from_the_one_before_and_says_so(run_dir, monkeypatch, capfd):
    monkeypatch.setattr(launch, "EvaluationClient", Inline)
    first, second, *_ = checkpoint.folders(run_dir / "checkpoints")
    os.truncate(first / STATE, 10)

    with resume(run_dir) as training_run:
        answer = finish(training_run)

    said = capfd.readouterr().err
    assert f"{first.name} skipped: {STATE} has 10 bytes" in said
    assert f"resuming from {second.name}" in said
    assert answer["env_steps"] == 1_200


def test_when_every_checkpoint_is_broken_the_run_is_not_begun_again_in_silence(
    run_dir, monkeypatch
):
    monkeypatch.setattr(launch, "EvaluationClient", Inline)
    metrics = (run_dir / "metrics.jsonl").read_bytes()
    for folder in checkpoint.folders(run_dir / "checkpoints"):
        (folder / WEIGHTS).unlink()

    with pytest.raises(CheckpointError, match="is intact") as refused, resume(run_dir):
        pass

    assert refused.value.exit_code == 3
    assert (run_dir / "metrics.jsonl").read_bytes() == metrics
    assert len(checkpoint.folders(run_dir / "checkpoints")) == 3


def shared_rows(run_dir: Path) -> str:
    """Returns the name of the oldest file of rows that all checkpoints share by hard links."""
    folders = checkpoint.folders(run_dir / "checkpoints")
    return min(set.intersection(*({path.name for path in f.glob("rows-*")} for f in folders)))


def damage(run_dir: Path, name: str) -> int:
    """Flips a bit of a file of rows, in all checkpoints that have it; returns its rows."""
    copies = sorted(run_dir.rglob(name))  # one file with several names, or copies of it
    whole = copies[0].read_bytes()
    for path in copies:
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    first, last = map(int, Path(name).stem.split("-")[2:])
    return last - first


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_one_bit_in_rows_that_all_checkpoints_share_costs_those_rows_only(
    sampling, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(launch, "EvaluationClient", Inline)
    run_dir = tmp_path / "run"
    with begin(run_dir, {"replay.sampling": sampling}) as training_run:
        finish(training_run, stop_at(180))
    newest_steps, name = int(newest(run_dir).name.split("-")[1]), shared_rows(run_dir)
    rows = damage(run_dir, name)

    with resume(run_dir) as training_run:
        assert training_run.parts.counters.env_steps == newest_steps
        answer = finish(training_run)

    said = capfd.readouterr().err
    assert f"without {rows} replay rows" in said
    assert "does not continue exactly" in said
    assert f"{name} does not match its checksum" in said
    assert answer["env_steps"] == 1_200
    search = checkpoint.newest(run_dir / "checkpoints", exact=True)
    assert search.found is not None  # the next checkpoints are whole again
    assert search.broken == []


@pytest.mark.parametrize("settings", [{}, {"algo.name": "ppo"}], ids=["replay", "rollouts"])
def test_a_run_whose_rows_are_all_damaged_goes_on_with_its_weights(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "EvaluationClient", Inline)
    run_dir = tmp_path / "run"
    with begin(run_dir, settings) as training_run:
        finish(training_run, stop_at(180))
        weights = {name: array.copy() for name, array in training_run.weights().arrays.items()}
    for name in {path.name for path in run_dir.rglob("rows-*")}:
        damage(run_dir, name)

    with resume(run_dir) as training_run:
        restored = training_run.weights().arrays
        assert all((restored[name] == array).all() for name, array in weights.items())
        answer = finish(training_run)

    assert answer["env_steps"] >= 1_200
    assert answer["learner_steps"] > 0


def test_a_checkpoint_with_damaged_rows_is_refused_where_an_exact_one_is_wanted(
    run_dir, monkeypatch
):
    monkeypatch.setattr(launch, "EvaluationClient", Inline)
    damage(run_dir, shared_rows(run_dir))

    with pytest.raises(CheckpointError, match="leave --exact out"), resume(run_dir, exact=True):
        pass


def test_weights_are_read_from_a_checkpoint_whose_rows_are_damaged(run_dir):
    damage(run_dir, shared_rows(run_dir))

    assert pick_checkpoint(run_dir, "last").folder == newest(run_dir)


def test_a_missing_file_of_rows_is_a_damaged_one(run_dir):
    for path in (run_dir / "checkpoints").rglob(segment(newest(run_dir)).name):
        path.unlink()
    older = checkpoint.folders(run_dir / "checkpoints")[1]

    assert_falls_back(run_dir)
    for path in (run_dir / "checkpoints").rglob(segment(older).name):
        path.unlink()
    found = checkpoint.verify(newest(run_dir))

    assert found.lost_rows > 0
    assert not all(each.intact for each in found.segments())


def test_a_broken_best_model_is_not_loaded_either(run_dir, capfd):
    (best,) = checkpoint.folders(run_dir / "best")
    os.truncate(best / WEIGHTS, 3)

    found = pick_checkpoint(run_dir, "best")

    assert found.folder == newest(run_dir)
    assert f"best/{best.name} skipped" in capfd.readouterr().err


def test_a_damaged_last_checkpoint_is_named_before_the_one_before_is_loaded(run_dir, capfd):
    last, before, *_ = checkpoint.folders(run_dir / "checkpoints")
    os.truncate(last / WEIGHTS, 3)

    found = pick_checkpoint(run_dir, "last")

    assert found.folder == before
    assert f"{last.name} skipped" in capfd.readouterr().err
