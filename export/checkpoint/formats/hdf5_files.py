"""Opens an HDF5 file, or one that lies in a .keras archive as it is. h5py is imported when the first one is opened."""

from __future__ import annotations

import zipfile
from typing import Any

from export.errors import CheckpointError


def open_hdf5(path: str, member: str | None) -> Any:
    """Opens an HDF5 file to be read.

    Args:
      path: of the file, or of the archive.
      member: name in the archive; None: `path` is the file itself.
    Returns:
      An h5py.File.
    Raises:
      CheckpointError: it cannot be opened, or h5py is missing.
    """
    try:
        import h5py
    except ImportError as problem:
        raise CheckpointError(f"{path} is read with h5py, which is missing: pip install 'rowcast[export]'") from problem
    try:
        return h5py.File(path if member is None else zipfile.ZipFile(path).open(member), "r")
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        raise CheckpointError(f"{path} cannot be opened as HDF5: {problem}; it is damaged, copy it anew") from problem
