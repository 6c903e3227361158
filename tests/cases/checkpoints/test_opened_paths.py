"""Which checkpoint a path means."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.reader import is_jax, is_torch
from tests.cases.checkpoints import broken_orbax, broken_torch
from tests.cases.checkpoints.broken_dumps import DUMPS
from tests.cases.checkpoints.broken_keras import archive
from tests.cases.checkpoints.inspections import in_a_store, inspected, rejected, run
from tests.cases.checkpoints.written import TABLE, tensors, weights
from tests.units.export.checkpoint.dump_files import hugectr_dump
from tests.units.export.checkpoint.orbax_trees import write_item, write_step
from tests.units.export.checkpoint.tensor_bundles import write_bundle


def write_tensorflow(directory: Path, name: str = "ckpt-1", files: int = 1) -> None:
    write_bundle(directory / name, {"v": TABLE}, files=files)


def write_state(directory: Path) -> None:
    write_tensorflow(directory, "elsewhere/ckpt")
    (directory / "checkpoint").write_text('model_checkpoint_path: "elsewhere/ckpt"')


def write_orbax(directory: Path) -> None:
    write_item(directory / "made", {"a": TABLE})
    for file in (directory / "made").iterdir():
        file.rename(directory / file.name)


WRITERS: dict[str, Callable[[Path], object]] = {
    "TensorFlow": write_tensorflow,
    "state": write_state,
    "Orbax": write_orbax,
    "Keras": weights({"layers/embedding/vars/0": ""}),
    "PyTorch": tensors("t"),
    "HugeCTR": lambda directory: hugectr_dump(directory, np.arange(8), TABLE),
}


def storage_of(path: object) -> str:
    """Returns what keeps the variables of a checkpoint, or why it is not opened."""
    done = run("inspect", path, "--json")
    return str(done.json["storage"]) if done.code == 0 else done.message


@pytest.mark.parametrize(
    ("writers", "local", "remote"),
    [
        ("TensorFlow", "TensorFlow", "TensorFlow"),
        ("state", "TensorFlow", "TensorFlow"),
        ("Orbax", "Orbax", "tensorstore does not read here"),
        ("Keras", "Keras", "this machine's disks only"),
        ("PyTorch", "PyTorch", "PyTorch"),
        ("HugeCTR", "HugeCTR", "holds no checkpoint"),
        ("TensorFlow, Orbax", "TensorFlow", "TensorFlow"),
        ("TensorFlow, Keras", "TensorFlow", "TensorFlow"),
        ("TensorFlow, PyTorch", "TensorFlow", "TensorFlow"),
        ("TensorFlow, HugeCTR", "TensorFlow", "TensorFlow"),
        ("state, Orbax", "Orbax", "TensorFlow"),
        ("state, Keras", "TensorFlow", "TensorFlow"),
        ("state, PyTorch", "TensorFlow", "TensorFlow"),
        ("Orbax, HugeCTR", "HugeCTR", "tensorstore does not read here"),
        ("Keras, PyTorch", "Keras", "PyTorch"),
    ],
)
def test_directory_of_several_checkpoints_is_opened_as_one_of_them(
    tmp_path: Path, writers: str, local: str, remote: str
) -> None:
    directory = tmp_path / "made"
    directory.mkdir()
    for name in writers.split(", "):
        WRITERS[name](directory)
    assert local in storage_of(directory)
    assert remote in storage_of(in_a_store(directory))
    # What an export decides before it builds a model.
    assert is_jax(directory) is (local == "Orbax")
    assert is_torch(in_a_store(directory)) is (remote == "PyTorch")


def prefixes(directory: Path) -> None:
    """Writes two checkpoints, of which the state file names the first."""
    write_tensorflow(directory, "ckpt-1", files=2)
    write_tensorflow(directory, "ckpt-2")
    (directory / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\nlast_seen: { at: 1 }')


def by_age(directory: Path) -> None:
    for age, name in enumerate(("ckpt-10", "ckpt-9")):
        write_tensorflow(directory, name)
        os.utime(directory / f"{name}.index", (1e9 - age, 1e9 - age))


def escaped(directory: Path) -> None:
    write_tensorflow(directory, 'nä"me-1')
    text = 'model_checkpoint_path: "/gone/long ago/n\\303\\244\\"me-1"'
    (directory / "checkpoint").write_text(text)


def saved_model(directory: Path) -> None:
    write_tensorflow(directory, "variables/variables")
    (directory / "saved_model.pb").write_bytes(b"")


def steps(directory: Path) -> None:
    """Writes steps of which the newest one is not committed, and what only looks like one."""
    for step in ("9", "10"):
        write_step(directory, step, {"a": TABLE})
    write_step(directory, "11", {"a": TABLE}, committed=False)
    write_step(directory, "12.orbax-checkpoint-tmp-1700000000", {"a": TABLE})
    (directory / "13").mkdir()
    (directory / "14").write_text("no directory")


def marked_step(directory: Path) -> None:
    """Writes a step that says by files alone that it was committed."""
    step = write_step(directory, "3", {"a": TABLE}, committed=False)
    for item in (step, step / "default"):
        (item / "commit_success.txt").write_text("Checkpoint commit was successful")


def items(directory: Path, *names: str) -> None:
    for name in names:
        write_item(directory / name, {"a": TABLE})


def committed_items(directory: Path) -> None:
    items(directory, "model", "towers")
    metadata = json.dumps({"commit_timestamp_nsecs": 2})
    (directory / "towers/_CHECKPOINT_METADATA").write_text(metadata)


def named_step(directory: Path) -> None:
    step = write_step(directory, "ckpt_7", {"a": TABLE})
    write_item(step / "tower_1", {"b": TABLE})


def archives(directory: Path) -> None:
    archive()(directory).rename(directory / "model.zip")


@pytest.mark.parametrize(
    ("write", "path", "name", "step", "keys"),
    [
        (prefixes, "", "ckpt-1", None, "v"),
        (prefixes, "ckpt-2", "ckpt-2", None, "v"),
        (prefixes, "ckpt-1.index", "ckpt-1", None, "v"),
        (by_age, "", "ckpt-10", None, "v"),
        (escaped, "", 'nä"me-1', None, "v"),
        (saved_model, "", "variables", None, "v"),
        (steps, "", "made/10", 10, "a"),
        (steps, "9/default", "made/9", 9, "a"),
        (named_step, "", "ckpt_7", 7, "default.a tower_1.b"),
        (marked_step, "", "made/3", 3, "a"),
        (committed_items, "", "made", None, "model.a towers.a"),
        (lambda directory: items(directory, "9", "10"), "", "made/10", 10, "a"),
        (lambda directory: items(directory, "run/model"), "run", "run", None, "a"),
        (archives, "model.zip", "model.zip", None, "layers/embedding/vars/0"),
        (weights({"v": ""}), "a.weights.h5", "a.weights.h5", None, "v"),
        (tensors("t"), "a.safetensors", "a.safetensors", None, "t"),
    ],
)
def test_path_means_the_checkpoint_that_its_program_would_restore(
    write: Callable[[Path], object],
    path: str,
    name: str,
    step: int | None,
    keys: str,
    tmp_path: Path,
) -> None:
    directory = tmp_path / "made"
    directory.mkdir()
    write(directory)
    opened = [directory / path]
    if write in {prefixes, escaped, saved_model}:
        opened.append(in_a_store(directory) / path)  # type: ignore[arg-type]
    for location in opened:
        page = inspected(location)
        assert (page["checkpoint"], page["step"]) == (name, step)
        listed = [entry["key"] for entry in page["dense"]]
        assert sorted(listed + [table["key"] for table in page["tables"].values()]) == keys.split()


def test_state_file_may_name_a_checkpoint_in_a_store(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    write_tensorflow(tmp_path / "made", "ckpt-7")
    store = in_a_store(tmp_path / "made")
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{store.url}/ckpt-7"')
    assert inspected(tmp_path)["checkpoint"] == "ckpt-7"


def test_path_by_links_and_dots_keeps_the_name_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items(tmp_path, "ckpt", "beside")
    (tmp_path / "latest").symlink_to(tmp_path / "ckpt")
    assert inspected(tmp_path / "latest")["checkpoint"] == "latest"
    monkeypatch.chdir(tmp_path / "beside")
    assert inspected("../beside/../ckpt")["checkpoint"] == "ckpt"
    assert inspected(".")["checkpoint"] == "beside"
    write_bundle(tmp_path / "other" / os.fsdecode(b"ckpt-\xff"), {"v": TABLE})
    assert inspected(tmp_path / "other")["checkpoint"] == "ckpt-\\xff"


@pytest.mark.parametrize("writer", DUMPS)
@pytest.mark.parametrize("within", [False, True])
def test_dump_is_a_table_with_its_keys(tmp_path: Path, writer: str, within: bool) -> None:
    directory = DUMPS[writer](tmp_path)
    # Names that only look like those of a dump are no tables of it.
    (tmp_path / "other").mkdir()
    for name in ("t-weight", "old-key", "slot_id", "meta_data", "key0"):
        (tmp_path / "other" / name).write_text("no numbers")
    for name, content in ((".DS_Store", "x"), ("_SUCCESS", "")):
        (directory / name).write_text(content)
    page = inspected(directory if within else tmp_path)
    name = "collection_0_table_0" if writer == "collection" else "t"
    table = page["tables"][name]
    assert len(page["tables"]) == 1
    assert page["storage"] == ("SOK" if "SOK" in writer else "HugeCTR")
    assert (table["rows"], table["dim"], table["origin"]) == (4, 5, "dump")
    assert table["keys"]
    assert table["slots"] == (["Adam-m"] if writer == "SOK" else [])


@pytest.mark.parametrize(
    ("write", "change"),
    [
        (write_tensorflow, lambda path: write_tensorflow(path, files=2)),
        (archive(), archive(data=TABLE)),
        (weights({"v": ""}), weights({"w": ""})),
        (tensors("t"), tensors("u")),
        (broken_torch.distributed(), broken_torch.distributed(broken_torch.part(values=bytes(32)))),
        (DUMPS["SOK"], lambda path: os.utime(path / "t-key", (1, 1))),
        (
            lambda path: items(path, "c"),
            lambda path: broken_orbax.store_of(path / "c").write("notes", b"later").result(),
        ),
        (
            lambda path: write_step(path, "3", {"a": TABLE}),
            lambda path: (path / "3/_CHECKPOINT_METADATA").write_text("{}"),
        ),
    ],
    ids=["TensorFlow", "archive", "HDF5", "safetensors", "torch", "dump", "store", "step"],
)
def test_fingerprint_is_of_what_was_saved(
    write: Callable[[Path], object], change: Callable[[Path], object], tmp_path: Path
) -> None:
    write(tmp_path)
    before = inspected(tmp_path)["fingerprint"]
    assert inspected(tmp_path)["fingerprint"] == before
    change(tmp_path)
    assert inspected(tmp_path)["fingerprint"] != before


@pytest.mark.parametrize(
    ("writer", "library", "extra"),
    [("Orbax", "tensorstore", "orbax"), ("Keras", "h5py", "export")],
)
def test_library_that_is_not_installed_is_named_with_its_extra(
    writer: str, library: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    WRITERS[writer](tmp_path / "made")
    monkeypatch.setitem(sys.modules, library, None)
    # HDF5 is listed by a process of its own.
    (tmp_path / f"{library}.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert f"'rowcast[{extra}]'" in rejected(tmp_path / "made")
