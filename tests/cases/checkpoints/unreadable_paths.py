"""Paths that hold no checkpoint, or none that is read: what lies there, and what its user should
give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from export.checkpoint.formats.sstable import MAGIC
from tests.cases.checkpoints.inspections import Case, Write
from tests.cases.checkpoints.written import names
from tests.units.export.checkpoint.tensor_bundles import table

Files = Mapping[str, bytes | str] | Sequence[str]


def files(contents: Files, path: str = "") -> Write:
    """Returns what writes files, of names alone with eight bytes, and opens a path."""
    if not isinstance(contents, Mapping):
        contents = dict.fromkeys(contents, b"12345678")

    def write(directory: Path) -> Path:
        for name, content in contents.items():
            (directory / name).parent.mkdir(exist_ok=True)
            data = content.encode() if isinstance(content, str) else content
            (directory / name).write_bytes(data)
        return directory / path

    return write


def one(name: str, content: bytes = b"") -> Write:
    return files({name: content}, name)


def state(text: str, *siblings: str) -> Write:
    """Returns what writes a state file beside checkpoints."""

    def write(directory: Path) -> Path:
        for sibling in siblings:
            for file in names(["v"])(directory).parent.glob("c.*"):
                file.rename(directory / file.name.replace("c.", f"{sibling}.", 1))
        (directory / "checkpoint").write_text(text)
        return directory

    return write


VERSION_1 = table([(b"", b"")])
CKPT_9 = 'model_checkpoint_path: "ckpt-9"'
NO_PATH = "names no model_checkpoint_path"
PREFIX = "give its prefix, ckpt-1"

UNREADABLE_PATHS: dict[str, Case] = {
    # A file of another program.
    "V1 by its end": (one("sorted", MAGIC), "V1 checkpoint", "V2 Saver"),
    "HDF5": (one("weights.h5", b"\x89HDF\r\n\x1a\n"), "weights.h5"),
    "data file": (one("ckpt-1.data-00000-of-00001", b"1234"), PREFIX),
    "state file": (one("checkpoint"), "give its directory"),
    "graph of a checkpoint": (one("ckpt-1.meta", b"graph"), PREFIX),
    "part of Orbax": (one("_METADATA", b"{}"), "part of an Orbax checkpoint", "its directory"),
    "SavedModel": (one("saved_model.pb"), "give the SavedModel's directory"),
    "PyTorch": (one("model.pt", b"PK\3\4"), "pickle of PyTorch", "safetensors.torch.save_file"),
    "part of torch.distributed": (one("__0_0.distcp", b"PK\3\4"), "give its directory"),
    "pickle": (one("lightning.ckpt", b"\x80\x02}"), "a pickle", "tf.train.Checkpoint"),
    "numpy": (one("table", b"\x93NUMPY\x01\0"), "file of numpy"),
    "LiteRT": (one("model.tflite", b"\x1c\0\0\0TFL3"), "give its checkpoint"),
    "msgpack": (one("model.mp", b"\x81\xa6params\x80"), "msgpack", "StandardCheckpointer"),
    "flax": (one("checkpoint_100", b"\x82\xa4step"), "restore_checkpoint"),
    "torchsnapshot": (one(".snapshot_metadata", b"version: 0.1.0"), "torch.distributed"),
    "dynamic embedding": (one("items_mht_1of2-values", bytes(80)), "dynamic embedding"),
    "text": (one("notes.txt", b"hello"), "no checkpoint"),
    # A directory without a checkpoint.
    "directory of PyTorch": (files(["model.pth", "config.json"]), "model.pth", "PyTorch"),
    "directory of a data file": (files(["ckpt-1.data-00000-of-00001"]), PREFIX),
    "directory of Orbax": (files({"_METADATA": b"", "saved_model.pb": b""}), "no tree of arrays"),
    "directory of a snapshot": (files([".snapshot_metadata", "0/users"]), "snapshot of PyTorch"),
    "directory of flax": (files({"checkpoint_7": b"\x81\xa6params\x80"}), "checkpoint_7", "flax"),
    "directory of a graph": (files(["saved_model.pb"]), "saved_model.pb is a graph"),
    "save that goes on": (files(["ckpt-1_temp/part"]), "ckpt-1 is not complete"),
    # A prefix that is not there.
    "prefix that is being saved": (files(["ckpt-1_temp/part"], "ckpt-1"), "is not complete"),
    "prefix without an index": (files(["ckpt-1.data-00000-of-00001"], "ckpt-1"), "no ckpt-1.index"),
    "another prefix": (files([f"c{n}.index" for n in range(6)], "d"), "beside it: c1, c2"),
    "name that is misspelled": (files(["my.weights.h5"], "my.weigths.h5"), "'my.weights.h5'?"),
    "directory that is not there": (files([], "no/where"), "where does not exist"),
    "path that is too long": (files([], "x" * 5000), "cannot be read"),
    # A state file.
    "damaged state": (state("\0", "ckpt-7"), NO_PATH),
    "state of a path that is gone": (state(CKPT_9, "ckpt-7"), "'ckpt-9'", "ckpt-7"),
    "state of a save that goes on": (
        files({"ckpt-9_temp/part": b"", "checkpoint": CKPT_9}),
        "ckpt-9 is not complete",
    ),
    "state of V1": (
        files({"old": VERSION_1, "checkpoint": 'model_checkpoint_path: "old"'}),
        "V1 checkpoint",
    ),
}
