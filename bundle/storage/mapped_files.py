"""Files beside the segments of tables that are mapped, and so need not be read before a bundle is
served.
"""

from __future__ import annotations

from bundle.format.manifest import File, Manifest

VECTORS_BYTES_MAX = 4 << 20
"""The maximum bytes of an index's vectors that are read in full where tables are checked by size:
more would delay the start of a service.
"""


def checked_later(manifest: Manifest) -> tuple[File, ...]:
    """Returns the files that are checked by size where tables are: key indexes, and large files of
    vectors.

    They are read as the rows of tables are: damage there makes a wrong number, and ends no process.
    """
    keys = {entry.file for entry in manifest.keys.values()}
    vectors = {entry.vectors for entry in manifest.indexes.values()}
    return tuple(
        file
        for file in manifest.files
        if file.path in keys or (file.path in vectors and file.bytes > VECTORS_BYTES_MAX)
    )
