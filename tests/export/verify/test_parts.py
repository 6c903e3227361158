"""Each part of a bundle is opened, whatever the checksums of its files say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from bundle.errors import FormatError
from bundle.storage import catalog, files
from export.verify.parts import open_parts
from tests.bundles.small import SmallBundle


def test_store_of_contexts_that_has_an_id_twice_is_found(
    write: Callable[..., SmallBundle], root: Path
) -> None:
    write(users=True)
    bundle = root / "movies/1"
    manifest = catalog.read_manifest(bundle)
    assert "contexts users" in list(open_parts(bundle, manifest))

    path = files.locate(bundle, manifest.contexts["users"].file)
    with pa.memory_map(str(path)) as source:
        stored = pa.ipc.open_file(source).read_all()
    twice = pa.concat_tables([stored.slice(0, stored.num_rows - 1), stored.slice(0, 1)])
    path.unlink()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, stored.schema) as writer:
        writer.write_table(twice.combine_chunks())
    with pytest.raises(FormatError, match="comes twice"):
        list(open_parts(bundle, manifest))
