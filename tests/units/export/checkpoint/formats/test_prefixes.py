"""What a path means, and the errors of everything that is no V2 checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.formats.prefixes import find_prefix
from export.checkpoint.formats.sstable import MAGIC
from export.errors import CheckpointError
from object_store.remote_path import RemotePath
from tests.units.export.checkpoint.tensor_bundles import table, write_bundle
from tests.units.object_store.memory_stores import uploaded


def write(prefix: Path) -> Path:
    write_bundle(prefix, {"v": np.zeros(3, np.float32)})
    return prefix


def state(directory: Path, text: str) -> None:
    (directory / "checkpoint").write_text(text)


@pytest.mark.parametrize("path", ["", "model.ckpt-5", "model.ckpt-5.index"])
def test_find_prefix_directory_prefix_or_index_means_the_same(tmp_path: Path, path: str) -> None:
    write(tmp_path / "model.ckpt-5")
    assert find_prefix(tmp_path / path) == tmp_path / "model.ckpt-5"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-3"\n', "ckpt-2"),
        ('model_checkpoint_path: "/gone/long/ago/ckpt-2"', "ckpt-2"),
        ('model_checkpoint_path: "n\\303\\244\\"me-1"', 'nä"me-1'),
    ],
)
def test_find_prefix_directory_with_state_file_takes_what_it_names(
    tmp_path: Path, text: str, name: str
) -> None:
    for entry in ("ckpt-1", "ckpt-2", "ckpt-3", 'nä"me-1'):
        write(tmp_path / entry)
    state(tmp_path, text)
    assert find_prefix(tmp_path) == tmp_path / name


def test_find_prefix_directory_without_state_file_takes_the_newest(tmp_path: Path) -> None:
    for age, name in enumerate(("ckpt-10", "ckpt-9")):
        os.utime(Path(f"{write(tmp_path / name)}.index"), (1e9 - age, 1e9 - age))
    assert find_prefix(tmp_path).name == "ckpt-10"


def test_find_prefix_state_file_may_hold_fields_that_are_not_known(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-7")
    state(tmp_path, 'model_checkpoint_path: "ckpt-7"\nlast_seen: { at: 1.5 }\n')
    assert find_prefix(tmp_path) == tmp_path / "ckpt-7"


def test_find_prefix_state_file_may_name_a_url(tmp_path: Path) -> None:
    write(tmp_path / "made/ckpt-7")
    store = uploaded(tmp_path / "made", RemotePath(f"memory://{tmp_path}/store"))
    state(tmp_path, f'model_checkpoint_path: "{store.url}/ckpt-7"')
    assert find_prefix(tmp_path) == store / "ckpt-7"


def test_find_prefix_of_a_saved_model_is_that_of_its_variables(tmp_path: Path) -> None:
    write(tmp_path / "variables/variables")
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert find_prefix(tmp_path) == tmp_path / "variables/variables"


NO_PATH = "{state} names no model_checkpoint_path; give the checkpoint's prefix instead"
NOT_THERE = "{state} names 'ckpt-9', which is not there (complete beside it: "

BROKEN_STATES: list[tuple[list[str], str, str]] = [
    (["ckpt-7"], "", NO_PATH),
    (["ckpt-7"], "\0", NO_PATH),
    (["ckpt-7"], 'all_model_checkpoint_paths: "ckpt-7"', NO_PATH),
    ([], 'model_checkpoint_path: "ckpt-9"', NOT_THERE + "none); give a prefix"),
    (["ckpt-7"], 'model_checkpoint_path: "ckpt-9"', NOT_THERE + "ckpt-7); give a prefix"),
    (
        [f"ckpt-{number}" for number in range(6)],
        'model_checkpoint_path: "ckpt-9"',
        NOT_THERE + "ckpt-1, ckpt-2, ckpt-3, ckpt-4, ckpt-5); give a prefix",
    ),
    (
        ["ckpt-7_temp"],
        'model_checkpoint_path: "ckpt-7"',
        "{directory}/ckpt-7 is not complete: ckpt-7_temp is there, its .index is not, so it is "
        "being saved or the save was interrupted; wait for it, or take an older one",
    ),
    (
        ["old.ckpt"],
        'model_checkpoint_path: "old.ckpt"',
        "{directory}/old.ckpt is a V1 checkpoint (a Saver with write_version=V1), which is not "
        "read here; save it with a V2 Saver",
    ),
]
"""What lies beside a state file, its text, and the error."""


@pytest.mark.parametrize(("siblings", "text", "message"), BROKEN_STATES)
def test_find_prefix_state_file_without_its_checkpoint_is_rejected_with_the_remedy(
    tmp_path: Path, siblings: list[str], text: str, message: str
) -> None:
    for name in siblings:
        if name.endswith("_temp"):
            (tmp_path / name).mkdir()
        elif name.endswith(".ckpt"):
            (tmp_path / name).write_bytes(table([(b"", b"")]))
        else:
            write(tmp_path / name)
    state(tmp_path, text)
    with pytest.raises(CheckpointError) as error:
        find_prefix(tmp_path)
    expected = message.format(state=f"state file {tmp_path / 'checkpoint'}", directory=tmp_path)
    assert str(error.value).endswith(expected)


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint_100"])
def test_find_prefix_of_a_directory_that_flax_wrote_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x81\xa6params\x80")
    with pytest.raises(CheckpointError, match=rf"{name} is a file of msgpack \(flax"):
        find_prefix(tmp_path)


@pytest.mark.parametrize("name", ["manifest.ocdbt", "_METADATA", "_CHECKPOINT_METADATA"])
def test_find_prefix_of_a_part_of_orbax_says_what_to_give(tmp_path: Path, name: str) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / name).write_bytes(b"")
    message = "it holds no tree of arrays; give the directory of a step, or of all steps"
    with pytest.raises(CheckpointError) as error:
        find_prefix(tmp_path / "made")
    assert str(error.value) == f"{tmp_path / 'made'} is an Orbax checkpoint: {message}"

    store = uploaded(tmp_path / "made", RemotePath(f"memory://{tmp_path}/store"))
    message = "it is read from this machine's disks only; copy it there first"
    with pytest.raises(CheckpointError) as error:
        find_prefix(store)
    assert str(error.value) == f"{store} is an Orbax checkpoint: {message}"


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("sorted", MAGIC, "V1 checkpoint"),
        ("weights.h5", b"\x89HDF\r\n\x1a\n", "a file of Keras"),
        ("model.keras", b"PK\x03\x04rest", "a file of Keras"),
        ("model.ckpt", table([(b"", b"")]), "V1 checkpoint"),
        ("ckpt-1.data-00000-of-00001", b"1234", "give its prefix, ckpt-1"),
        ("checkpoint", b"", "give its directory"),
        ("model.ckpt-1.meta", b"graph", "give its prefix, model.ckpt-1"),
        ("_METADATA", b"{}", "part of an Orbax checkpoint; give its directory"),
        ("saved_model.pb", b"", "give the SavedModel's directory"),
        ("model.pt", b"PK\x03\x04", "a pickle of PyTorch, .*safetensors.torch.save_file"),
        ("__0_0.distcp", b"PK\x03\x04", "of torch.distributed; give its directory"),
        ("lightning.ckpt", b"\x80\x02}", "a pickle .*tf.train.Checkpoint"),
        ("table", b"\x93NUMPY\x01\0", "file of numpy"),
        ("model.tflite", b"\x1c\0\0\0TFL3", "give its checkpoint"),
        ("model.mp", b"\x81\xa6params\x80", "file of msgpack .*StandardCheckpointer"),
        ("model.msgpack", b"", "file of msgpack .*StandardCheckpointer"),
        ("large", b"\xde\x00\x20\xd9\x40param", "file of msgpack"),
        ("checkpoint_100", b"\x82\xa4step", r"restore_checkpoint\(PATH, target=None\)"),
        (".snapshot_metadata", b"version: 0.1.0", r"torchsnapshot.*torch\.distributed"),
        ("items_mht_1of1_rank0_size1-keys", bytes(80), "dynamic embedding .*NAME_keys.file"),
        ("items_mht_1of2-values", bytes(80), "dynamic embedding .*NAME_values.file"),
        ("notes.txt", b"hello", "no checkpoint"),
        ("empty", b"", "no checkpoint"),
    ],
)
def test_find_prefix_of_another_file_names_its_format(
    tmp_path: Path, name: str, content: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=what):
        find_prefix(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "path", "what"),
    [
        (["model.pth", "config.json"], "", "holds no checkpoint; .*a pickle of PyTorch"),
        (["ckpt-1.data-00000-of-00001"], "", "holds no checkpoint; .*give its prefix, ckpt-1"),
        (["_METADATA"], "", "Orbax"),
        ([".snapshot_metadata", "0/users"], "", "is a snapshot of PyTorch"),
        (["items_mht_1of1-keys"], "", "holds no checkpoint; .*dynamic embedding"),
        (["flax.msgpack"], "", "holds no checkpoint; .*flax.msgpack is a file of msgpack"),
        (["checkpoint_7"], "", "holds no checkpoint; .*checkpoint_7 is no checkpoint"),
        (["ckpt-1_temp/part"], "", "ckpt-1 is not complete"),
        (["ckpt-1_temp/part"], "ckpt-1", "ckpt-1 is not complete"),
        (["ckpt-1.data-00000-of-00001"], "ckpt-1", "data files but no ckpt-1"),
        (["ckpt-1.index"], "ckpt-2", "beside it: ckpt-1"),
        (["saved_model.pb"], "", "holds no checkpoint; .*saved_model.pb is a graph"),
        (["variables/variables.index"], "", "no file named `checkpoint`"),
        (["ckpt-1_temp"], "", "no file named `checkpoint`"),
        (["ckpt-1_temp"], "ckpt-1", r"ckpt-1 does not exist; did you mean 'ckpt-1_temp'\?$"),
        (["my.weights.h5"], "my.weigths.h5", r"not exist; did you mean 'my\.weights\.h5'\?$"),
        (["old.index/part"], "", "no file named `checkpoint`"),
        (["x.h5/part", "y.meta/part"], "", "no file named `checkpoint`"),
        (["x.h5"], "", "holds no checkpoint; .*x.h5 is no checkpoint; give a directory"),
        (["x.hdf5"], "", "holds no checkpoint; .*x.hdf5 is no checkpoint; give a directory"),
        (["x.keras"], "", "holds no checkpoint; .*x.keras is no checkpoint; give a directory"),
        (["x.txt"], "", "no file named `checkpoint`"),
        ([f"c{n}.index" for n in range(6)], "d", "exist; beside it: c1, c2, c3, c4, c5$"),
        (["ckpt-1.index"], "ckpt-2.index", "ckpt-2.index does not exist; beside it: ckpt-1$"),
        (["ckpt-1.index/part"], "ckpt-1.index/ckpt", "ckpt does not exist$"),
        (["notes"], "ckpt-1", "ckpt-1 does not exist$"),
        ([], "no/where", "where does not exist$"),
        ([], "a\0b", "does not exist"),
        ([], "x" * 5000, "read"),
        (["sub/notes"], "sub", "no file named `checkpoint`"),
    ],
)
def test_find_prefix_without_a_checkpoint_lists_the_files_that_are_there(
    tmp_path: Path, names: list[str], path: str, what: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345678")
    with pytest.raises(CheckpointError, match=what):
        find_prefix(tmp_path / path)
