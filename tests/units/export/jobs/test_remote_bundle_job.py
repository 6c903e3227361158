"""A whole job whose checkpoint and root are in stores: TensorFlow restores from a local copy
without tables.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle.storage import catalog
from object_store.remote_path import RemotePath
from service.cli.bundle_download import pull
from service.cli.bundle_source import find_bundle
from tests.units.export.movies_job import Recipe, changed, export, facts, write_project
from tests.units.object_store.memory_stores import CountedStore


@pytest.mark.slow
def test_run_from_a_store_to_a_store_publishes_what_a_local_run_does(
    recipe: Recipe, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = Path(recipe["checkpoint"]["path"])
    store = RemotePath(f"counted://{tmp_path.name}")
    for file in prefix.parent.glob(f"{prefix.name}.*"):
        (store / "training" / file.name).write(file.read_bytes())
    remote = changed(
        changed(recipe, "checkpoint.path", f"{store}/training"), "output.root", f"{store}/bundles"
    )
    published = export(write_project(tmp_path / "project", remote))
    assert str(published.directory) == f"{store}/bundles/movies/1"
    pulled = pull(find_bundle(f"{store}/bundles"), tmp_path / "root", None)
    page = catalog.read_manifest(pulled.bundle)
    assert page.tables == catalog.read_manifest(undisturbed).tables
    assert set(facts(pulled.bundle)[1]) == set(facts(undisturbed)[1])
    assert not any(path.is_file() for path in (tmp_path / ".rowcast-scratch").glob("*/movies/**/*"))
    assert CountedStore.requests[tmp_path.name] < 500
