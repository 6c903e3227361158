"""A checkpoint in a store is found, opened and read as one on a disk."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from runtime.object_store import RemotePath
from tests.export.checkpoint.bundles import write_bundle
from tests.stores import uploaded

VALUES = np.arange(600, dtype=np.float32).reshape(100, 6)


@pytest.fixture(params=["memory", "local"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> RemotePath:
    """A directory with two checkpoints and a state file that names the first."""
    for name, factor in (("ckpt-1", 1), ("ckpt-2", 2)):
        write_bundle(
            tmp_path / "made" / name, {"t": factor * VALUES, "s": np.zeros(3, np.float32)}, files=2
        )
    (tmp_path / "made" / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\n')
    return uploaded(tmp_path / "made", RemotePath(f"{request.param}://{tmp_path}/store"))


@pytest.mark.parametrize("given", ["", "ckpt-1", "ckpt-1.index"])
def test_open_checkpoint_directory_prefix_or_index_in_a_store_means_the_same(
    directory: RemotePath, given: str
) -> None:
    checkpoint = open_checkpoint(directory / given if given else directory)
    assert str(checkpoint.prefix) == f"{directory}/ckpt-1"
    assert checkpoint.name == "ckpt-1"
    np.testing.assert_array_equal(checkpoint.read("t", 7, 50), VALUES[7:57])
    np.testing.assert_array_equal(checkpoint.read_all("t"), VALUES)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("ckpt-3", "does not exist; beside it: ckpt-1, ckpt-2"),
        ("ckpt-1.data-00000-of-00002", "is a data file of"),
    ],
)
def test_open_checkpoint_what_is_none_in_a_store_is_told(
    directory: RemotePath, given: str, what: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(what)):
        open_checkpoint(directory / given)


def test_open_checkpoint_data_file_missing_in_a_store_is_told(directory: RemotePath) -> None:
    (directory / "ckpt-1.data-00001-of-00002").remove()
    with pytest.raises(CheckpointError, match=r"data-00001-of-00002 cannot be read: No such file"):
        open_checkpoint(directory)


def test_check_unchanged_checkpoint_that_is_saved_again_is_told(directory: RemotePath) -> None:
    checkpoint = open_checkpoint(directory)
    checkpoint.check_unchanged()
    file = directory / "ckpt-1.data-00000-of-00002"
    file.write(file.read(0, file.stamp().bytes))
    with pytest.raises(CheckpointError, match="data-00000-of-00002 changed while it was read"):
        checkpoint.check_unchanged()
