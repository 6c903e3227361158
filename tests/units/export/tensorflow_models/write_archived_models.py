"""Writes archived_models.tar.xz: files of the models in `archived_models.py`, by releases of Keras.

For each release, an environment with that release and TensorFlow, in which no file of rowcast is
needed, runs in this folder:

    python write_archived_models.py keras files      # or tf_keras; tensorflow.keras up to 2.15

Then `python write_archived_models.py pack files` packs all of them. A model that a release cannot
build or save is left out. The archive was written with Keras 3.0.5, 3.3.3, 3.6.0, 3.10.0, 3.12.0
and 3.14.0, and with tf-keras 2.13.1, 2.15.1, 2.16.0 and 2.19.0.
"""

from __future__ import annotations

import importlib
import io
import lzma
import sys
import tarfile
from pathlib import Path

import numpy as np
from archived_models import KINDS  # type: ignore[import-not-found]

SUFFIXES = (".keras", ".h5")


def write(library: str, folder: Path) -> None:
    """Writes a file of each kind and suffix that the release can write."""
    kit = importlib.import_module(library)
    name = library if library == "keras" else "tf_keras"
    # The Keras in TensorFlow has the release of TensorFlow, and some state none.
    version = getattr(kit, "__version__", None) or importlib.import_module("tensorflow").__version__
    release = folder / f"{name}-{version}"
    release.mkdir(parents=True, exist_ok=True)
    for kind, build in KINDS.items():
        for suffix in SUFFIXES:
            path = release / f"{kind}{suffix}"
            kit.backend.clear_session()
            try:
                model = build(kit)
                for weight in model.weights:
                    # Zeros are packed well. tf-keras lists tables of lookups, too.
                    if hasattr(weight, "assign") and "string" not in str(weight.dtype):
                        weight.assign(np.zeros(weight.shape))
                model.save(path)
            except Exception as problem:  # noqa: BLE001 - a release may lack anything
                path.unlink(missing_ok=True)
                sys.stdout.write(f"{path}: {problem}\n")


def pack(folder: Path) -> None:
    """Packs all files, always as the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.rglob("*.*")):
            if path.is_file():
                member = tarfile.TarInfo(path.relative_to(folder).as_posix())
                member.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(member, file)
    Path("archived_models.tar.xz").write_bytes(lzma.compress(packed.getvalue(), preset=9))


if __name__ == "__main__":
    if sys.argv[1] == "pack":
        pack(Path(sys.argv[2]))
    else:
        write(sys.argv[1], Path(sys.argv[2]))
