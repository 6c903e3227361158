"""Every file name in a bundle, once. Strings only: this module never touches a disk."""

from __future__ import annotations

import posixpath
import re

from bundle.errors import UnsafePath

MANIFEST = "manifest.json"
WARM_UP_REQUESTS = "warm_up/requests.tfrecord"
"""The file of the requests for the warm-up."""
SIGNED_FILES = "signature/files.json"
"""The list of the files of a signed bundle, with the SHA-256 of each of their blocks."""
SIGNATURE = "signature/files.json.sig"
"""The signature of that list."""
SIGNATURE_FILES = (SIGNED_FILES, SIGNATURE)
"""The files that a signed bundle has beside those of its manifest."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")


def is_name(text: str) -> bool:
    """Returns whether a model, table, tower, corpus or index may be called so: it becomes a
    directory's name.
    """
    return _NAME.fullmatch(text) is not None


def table_segment(table: str, segment: int, segments: int) -> str:
    """Returns the file of one row segment, e.g. `tables/users/rows-00000-of-00004.bin`."""
    return f"tables/{table}/rows-{segment:05d}-of-{segments:05d}.bin"


def table_scales(table: str, segment: int, segments: int) -> str:
    """Returns the file of the scales beside one segment of int8 rows, e.g.
    `tables/users/scales-00000-of-00004.bin`.
    """
    return f"tables/{table}/scales-{segment:05d}-of-{segments:05d}.bin"


def delta(file: str, number: int) -> str:
    """Returns the file of a delta, from 1, of the segment with this file, e.g.
    `tables/users/rows-00000-of-00004.bin.delta-1`.
    """
    return f"{file}.delta-{number}"


def linked_file(number: int) -> str:
    """Returns the hard link into a data file of the checkpoint, e.g. `linked/00000.data`."""
    return f"linked/{number:05d}.data"


def saved_model(tower: str, part: str = "", precision: str = "f32") -> str:
    """Returns the directory of a tower's SavedModel, or of one of its parts, in a precision."""
    directory = f"{_tower(tower, part)}/saved_model"
    if precision == "f32":
        return directory
    return f"{directory}-{precision}"


def compiled_tower(tower: str, precision: str, part: str = "") -> str:
    """Returns the file of a tower, or of one of its parts, compiled for LiteRT; `precision` is
    `f32` or `int8`.
    """
    return f"{_tower(tower, part)}/compiled-{precision}.tflite"


def _tower(tower: str, part: str) -> str:
    if part:
        return f"towers/{tower}/parts/{part}"
    return f"towers/{tower}"


def corpus_store(corpus: str) -> str:
    """Returns the Arrow IPC file that holds a corpus' ids, features and attributes."""
    return f"corpora/{corpus}/store.arrow"


def attribute_index(corpus: str, number: int) -> str:
    """Returns the directory of the index of one attribute, e.g.
    `corpora/movies/filters/00000`.
    """
    return f"corpora/{corpus}/filters/{number:05d}"


def attribute_values(corpus: str, number: int) -> str:
    """Returns the Arrow IPC file of an attribute's values."""
    return f"{attribute_index(corpus, number)}/values.arrow"


def attribute_rows(corpus: str, number: int) -> str:
    """Returns the file of the positions of an attribute's values."""
    return f"{attribute_index(corpus, number)}/rows.bin"


def index_directory(index: str, engine: str) -> str:
    """Returns the directory of one index's files, which its engine has written."""
    return f"indexes/{index}/{engine}"


def index_partitions(directory: str, partitions: int) -> tuple[str, ...]:
    """Returns the directory of each partition, e.g. `<directory>/partition-00000-of-00003`; a
    single partition has the index's own directory.
    """
    if partitions == 1:
        return (directory,)
    return tuple(
        f"{directory}/partition-{number:05d}-of-{partitions:05d}" for number in range(partitions)
    )


def index_vectors(index: str) -> str:
    """Returns the file of the indexed vectors: raw float32 rows in the corpus' order."""
    return f"indexes/{index}/vectors.bin"


def index_codes(index: str) -> str:
    """Returns the directory of the codes of an index's vectors."""
    return f"indexes/{index}/codes"


def vocabulary(name: str) -> str:
    """Returns the Arrow IPC file of one vocabulary."""
    return f"vocabularies/{name}.arrow"


def key_index(name: str) -> str:
    """Returns the file of one key index."""
    return f"keys/{name}.bin"


def context_store(name: str) -> str:
    """Returns the Arrow IPC file that holds the ids and features of contexts."""
    return f"contexts/{name}/store.arrow"


def candidate_list(name: str) -> str:
    """Returns the Arrow IPC file of one list of candidates."""
    return f"lists/{name}.arrow"


def checked(path: str) -> str:
    """Returns `path` if it is relative, normalized and inside the bundle.

    Raises:
      UnsafePath: The path is absolute, not normalized or outside, or holds a backslash or a NUL.
    """
    # A backslash separates names on other systems, and no file of any system has a NUL in its name.
    is_unsafe = (
        not path
        or path.startswith("/")
        or "\\" in path
        or "\0" in path
        or posixpath.normpath(path) != path
        or path.split("/", maxsplit=1)[0] in (".", "..")
    )
    if is_unsafe:
        raise UnsafePath(
            f"path {path!r} in the manifest is not a normalized relative path inside the bundle"
        )
    return path
