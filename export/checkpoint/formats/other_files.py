"""What a file is that is no checkpoint of a kind that is read, as far as its name and its ends tell, and what to do."""

from __future__ import annotations

from export.checkpoint.formats.sstable import MAGIC
from runtime.object_store import Place, RemotePath

STATE_FILE = "checkpoint"
_SAVE = "is not read here; save its tables by tf.train.Checkpoint from there, then name them with --table NAME=KEY"
_BY_SUFFIX = {
    **dict.fromkeys((".pt", ".pth", ".distcp"), f"a checkpoint of PyTorch, which {_SAVE}"),
    ".safetensors": f"a file of safetensors, which {_SAVE}",
    **dict.fromkeys((".npy", ".npz"), f"a file of numpy, which {_SAVE}"),
    **dict.fromkeys((".onnx", ".tflite"), "a model made for answering, without the tables' names; give its checkpoint"),
    **dict.fromkeys((".pb", ".pbtxt"), "a graph of TensorFlow; give the SavedModel's directory, or a checkpoint of it"),
}
_BY_HEAD = {
    (b"\x89HDF", b"PK\x03\x04"): "a file of Keras, which is read from this machine's disks only",
    (b"\x93NUMPY",): _BY_SUFFIX[".npy"],
    tuple(
        bytes([0x80, protocol]) for protocol in range(2, 6)
    ): f"a pickle (PyTorch's and scikit-learn's), which {_SAVE}",
}
_ORBAX = ("manifest.ocdbt", "_CHECKPOINT_METADATA", "_METADATA")


def is_orbax_part(name: str) -> bool:
    """Tells whether a file of this name marks the directory of an Orbax checkpoint."""
    return name in _ORBAX


def told_by_name(file: Place) -> str:
    """Says what a file is whose name alone tells it, and what to do; "" of any other."""
    if ".data-" in file.name:
        return f"a data file of a checkpoint; give its prefix, {file.name.split('.data-')[0]}"
    if file.suffix == ".meta":
        return f"the graph beside a checkpoint of TF1; give its prefix, {file.name.removesuffix('.meta')}"
    if file.name == STATE_FILE:
        return f"a state file; give its directory, {file.parent}"
    if is_orbax_part(file.name):
        return f"a part of an Orbax checkpoint; give its directory, {file.parent}"
    return _BY_SUFFIX.get(file.suffix, "")


def told_by_ends(file: Place) -> str:
    """Says what a file is by its name or its first and last bytes, and what to do.

    Raises:
      OSError: it cannot be read.
    """
    head, tail = _ends(file)
    kinds = [told_by_name(file), *(kind for begins, kind in _BY_HEAD.items() if head.startswith(begins))]
    if tail == MAGIC:
        kinds.append("a V1 checkpoint (a Saver with write_version=V1), which is not read here; save it with a V2 Saver")
    kind = next(filter(None, kinds), "no checkpoint; give a directory, a prefix or an .index file")
    return f"{file} is {kind}"


def _ends(path: Place) -> tuple[bytes, bytes]:
    """Returns the first 8 bytes of a file and the last ones, where a sorted string table has its magic number."""
    if isinstance(path, RemotePath):
        size = path.stamp().bytes
        return path.read(0, min(8, size)), path.read(max(0, size - len(MAGIC)), min(size, len(MAGIC)))
    with path.open("rb") as file:
        head = file.read(8)
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(MAGIC)))
        return head, file.read()
