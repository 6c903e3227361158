"""Checkpoints that PyTorch itself wrote (torch.tar.xz, by write_torch.py), read and copied without
it: every table, bit for bit.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from object_store.remote_path import RemotePath
from tests.differential.copies import copied
from tests.hostile.damage import case_files, trial

BAGS = "model.sparse.ebc.embedding_bags"
KEYS = {
    "users": f"{BAGS}.users.weight",
    "items": f"{BAGS}.items.weight",
    "tags": "model.sparse.ec.embeddings.tags.weight",
}
STATE = f"optim.state.{KEYS['users']}.users.momentum1"
CASES = ("torch_distributed", "torch_safetensors")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both cases, and the values of all tensors."""
    root = tmp_path_factory.mktemp("torch")
    with tarfile.open(Path(__file__).with_name("torch.tar.xz")) as archive:
        archive.extractall(root, filter="data")
    return root


@pytest.fixture(scope="module")
def values(written: Path) -> dict[str, bytes]:
    """The bytes of each tensor; of bfloat16 its 16 bits."""
    with np.load(written / "torch_values.npz") as file:
        return {name: np.ascontiguousarray(file[name]).tobytes() for name in file.files}


@pytest.mark.parametrize("case", CASES)
def test_tables_of_torchrec_are_recognized_by_name_and_copied(
    case: str, written: Path, values: dict[str, bytes], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(written / case)
    actual = recognize(checkpoint)
    assert (actual.storage, actual.step) == ("PyTorch", None)
    tables = {table.name: (table.key, table.dtype, table.origin) for table in actual.tables}
    assert tables == {
        "users": (KEYS["users"], "float32", "TorchRec"),
        "items": (KEYS["items"], "float32", "TorchRec"),
        "tags": (KEYS["tags"], "bfloat16", "TorchRec"),
    }
    assert [(slot.name, slot.key, slot.trained_key) for slot in actual.slots] == [
        ("users.momentum1", STATE, KEYS["users"])
    ]
    expected = {name: values[key] for name, key in KEYS.items()}
    assert copied(checkpoint, actual, tmp_path) == expected


@pytest.mark.parametrize("case", CASES)
def test_matrix_of_any_module_is_copied_by_its_name(
    case: str, written: Path, values: dict[str, bytes], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(written / case)
    assert "model.words.weight" in [entry.key for entry in recognize(checkpoint).candidates]
    actual = recognize(checkpoint, Statements({"words": "model.words.weight"}))
    tables = copied(checkpoint, actual, tmp_path)
    assert tables["words"] == values["model.words.weight"]


@pytest.mark.parametrize("case", CASES)
def test_checkpoint_in_a_store_is_read_where_it_lies(
    case: str, written: Path, values: dict[str, bytes]
) -> None:
    store = RemotePath(f"memory://{case}/c")
    for file in (written / case).iterdir():
        (store / file.name).write(file.read_bytes())
    checkpoint = open_checkpoint(store)
    for key in KEYS.values():
        assert checkpoint.read_all(key).tobytes() == values[key]


def test_one_file_of_safetensors_is_a_checkpoint(written: Path, values: dict[str, bytes]) -> None:
    file = written / "torch_safetensors/model-00002-of-00002.safetensors"
    checkpoint = open_checkpoint(file)
    assert checkpoint.read_all(KEYS["users"]).tobytes() == values[KEYS["users"]]


def test_save_that_did_not_finish_is_rejected(written: Path, tmp_path: Path) -> None:
    case = shutil.copytree(written / "torch_distributed", tmp_path / "case")
    (case / "__1_0.distcp").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp is missing"):
        open_checkpoint(case)
    (case / ".metadata").unlink()
    with pytest.raises(CheckpointError, match=r"no \.metadata: the save or the copy did not"):
        open_checkpoint(case)


def test_rows_that_torchrec_sharded_over_sparsecores_are_copied_in_the_order_of_ids(
    written: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(written / "torch_sparsecore")
    actual = recognize(checkpoint)
    users = actual.table("users")
    assert (users.rows, users.layout.kind) == (64, "sparse_core")
    assert "may be padding" in users.note
    assert {table.name: table.combiner for table in actual.tables} == {
        "users": "",
        **dict.fromkeys(("genres", "movies", "tags"), "mean"),
    }
    rows = {"users": np.arange(64.0, dtype=np.float32)[:, None].repeat(4, 1)}
    with np.load(written / "torch_sparsecore_values.npz") as file:
        rows |= file
    expected = {name: np.ascontiguousarray(values).tobytes() for name, values in rows.items()}
    assert copied(checkpoint, actual, tmp_path) == expected


def test_file_that_an_index_names_and_that_is_not_there_is_named(
    written: Path, tmp_path: Path
) -> None:
    case = shutil.copytree(written / "torch_safetensors", tmp_path / "case")
    (case / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors', which is not"):
        open_checkpoint(case)


def test_files_of_safetensors_without_an_index_are_not_guessed(
    written: Path, tmp_path: Path
) -> None:
    case = shutil.copytree(written / "torch_safetensors", tmp_path / "case")
    (case / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match="holds 2 checkpoints of safetensors"):
        open_checkpoint(case)


@pytest.mark.parametrize("case", CASES)
def test_checkpoint_of_pytorch_with_any_damage_gives_values_or_a_typed_error(
    case: str, written: Path, tmp_path: Path
) -> None:
    files = case_files(written / case)
    for seed in range(30):
        with TemporaryDirectory(dir=tmp_path) as directory:
            trial(seed, files, Path(directory))


def header_edits() -> list[tuple[object, str]]:
    tensor = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    return [
        ({**tensor, "shape": [2, 4]}, "has 24 bytes"),
        ({**tensor, "shape": [-2, -3]}, "cannot be"),
        ({**tensor, "shape": [1 << 40, 1 << 40]}, "cannot be"),
        ({**tensor, "data_offsets": [24, 0]}, "cannot be"),
        ({**tensor, "data_offsets": [8, 32]}, "cut short"),
        ({**tensor, "data_offsets": [0.0, 24]}, r"'t\.data_offsets\.0' is 0\.0"),
        ({"dtype": "F32", "shape": [2, 3]}, r"'t\.data_offsets' is missing"),
        ("F32", "'t' is 'F32'"),
    ]


@pytest.mark.parametrize(("tensor", "message"), header_edits())
def test_header_of_safetensors_that_cannot_be_is_rejected(
    tensor: object, message: str, tmp_path: Path
) -> None:
    header = json.dumps({"t": tensor}).encode()
    file = tmp_path / "a.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(file)
