"""Tables of checkpoints that PyTorch itself wrote become bundles."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from bundle.storage import catalog, integrity
from export.checkpoint.reader import open_checkpoint
from tests.units.export.commands import Command

ARCHIVE = Path(__file__).parents[3] / "differential/torch.tar.xz"
ITEMS = "model.sparse.ebc.embedding_bags.items.weight"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("torch")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(root, filter="data")
    return root


@pytest.mark.parametrize("case", ["torch_distributed", "torch_safetensors"])
def test_job_publishes_the_tables_of_a_checkpoint_of_pytorch(
    case: str, written: Path, command: Command, tmp_path: Path
) -> None:
    done = command("tables", written / case, tmp_path, "--model", "m", "--full", "--json")
    assert done.code == 0, done.err
    manifest = catalog.read_manifest(tmp_path / "m/1")
    integrity.check_files(tmp_path / "m/1", manifest, tables="full")
    compared = done.json["verification"]["tables"]
    assert {name: check["rows_compared"] for name, check in compared.items()} == {
        "users": 21,
        "items": 10,
        "tags": 9,
    }


def test_part_that_does_not_match_its_crc32_is_rejected_before_it_is_copied(
    written: Path, command: Command, tmp_path: Path
) -> None:
    case = shutil.copytree(written / "torch_distributed", tmp_path / "case")
    part = open_checkpoint(case).entries[ITEMS].slices[1]
    with Path(part.file).open("r+b") as file:
        file.seek(part.offset + 5)
        file.write(b"\xff")
    done = command("tables", case, tmp_path / "root", "--model", "m")
    assert done.code == 3
    assert "table 'items'" in done.message
    assert "do not match their crc32" in done.message
    assert not (tmp_path / "root/m/1").exists()
