"""A bundle's way over Google Cloud Storage: exported from there to there, pulled, compared.

The store is gcp-storage-emulator, which ignores preconditions. Its log shows
that the programs send them.
"""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.forked_programs import run_forked
from tests.e2e.gcs_server import GcsServer, gcs_server
from tests.units.export.checkpoint.tensor_bundles import write_bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(find_spec, ("gcsfs", "gcp_storage_emulator"))),
        reason="needs gcsfs and gcp-storage-emulator, of the extra dev",
    ),
]

BUCKET = "models"
TABLE = np.random.default_rng(5).standard_normal((100_000, 16)).astype(np.float32)
"""6 MiB: its segment is sent as two objects."""


def put(server: GcsServer, directory: Path, prefix: str) -> None:
    """Copies the files of a directory into the store."""
    for file in sorted(directory.rglob("*")):
        if not file.is_file():
            continue
        name = urllib.parse.quote(f"{prefix}/{file.relative_to(directory)}", safe="")
        url = f"http://127.0.0.1:{server.port}/upload/storage/v1/b/{BUCKET}/o"
        request = urllib.request.Request(
            f"{url}?uploadType=media&name={name}", data=file.read_bytes(), method="POST"
        )
        urllib.request.urlopen(request).close()


def run(server: GcsServer, directory: Path, *words: object) -> dict[str, Any]:
    """Runs a program as a user calls it; returns what it prints as JSON."""
    code, out, err = run_forked([*words, "--json"], directory, server.environment)
    assert code == 0, err[-4000:]
    page: dict[str, Any] = json.loads(out)
    return page


def test_bundle_is_exported_from_gcs_to_gcs_and_pulled(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    write_bundle(tmp_path / "made/ckpt-7", {"users": TABLE})
    url = f"gs://{BUCKET}/training"
    root = f"gs://{BUCKET}/bundles"
    export = ("rowcast-export", "tables", url, root, "--table", "users=users", "--full")
    with gcs_server(BUCKET) as store:
        put(store, tmp_path / "made", "training")
        inspected = run(store, tmp_path, "rowcast-export", "inspect", url)
        published = run(store, tmp_path, *export)
        pulled = run(store, tmp_path, "rowcast-serve", "pull", root, tmp_path / "root")

    assert inspected["checkpoint"] == "ckpt-7"
    assert published["bundle"] == f"{root}/tables/1"
    file = Path(pulled["bundle"], "tables/users/rows-00000-of-00001.bin")
    np.testing.assert_array_equal(np.fromfile(file, "<f4").reshape(TABLE.shape), TABLE)

    # Whoever creates `objects.json` first wins.
    creating = [query for query in store.uploads() if "ifGenerationMatch=0" in query]
    assert len(creating) == 1
