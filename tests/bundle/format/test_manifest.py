from __future__ import annotations

from pathlib import Path

from bundle.format.manifest import dump, parse
from bundle.storage.staging import read_manifest


def test_manifest_written_twice_has_the_same_bytes(committed_bundle: Path) -> None:
    manifest = read_manifest(committed_bundle)
    data = (committed_bundle / "manifest.json").read_bytes()
    assert dump(manifest) == dump(parse(data)) == data
    assert data.startswith(b'{\n  "format_version": 1,\n  "digest": ')
