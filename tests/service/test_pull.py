"""Bundles come whole from a store, are gone on with after a stop, and old ones leave when nothing uses them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bundle import paths, retention, staging
from bundle.checksums import BLOCK_BYTES
from bundle.manifest import EmbeddedFeature, Manifest, Provenance, Table, TableCheck, TableSource, Verification, dump
from bundle.staging import Staging
from bundle.tables import ShardWriter
from runtime.remote import RemotePath
from service.pull import DestinationProblem, Pulled, pull
from service.remote_bundles import Damaged, SourceUnreadable, UsageProblem, find_bundle
from tests.stores import CountedStore, uploaded

DIM = 16
ROWS = (2 * BLOCK_BYTES + 100_000 * 64) // 64
"""Of a table of three blocks and a half."""
EXTRA = 9 << 20
"""Bytes of a file that has no checksums of its blocks."""


def write(root: Path, version: int) -> Manifest:
    """Writes a bundle of one table in two shards, and a large file."""
    with Staging(root, "m", version) as stage:
        values = np.random.default_rng(version).standard_normal((ROWS, DIM)).astype(np.float32)
        shards = []
        for number, part in enumerate(np.split(values, [ROWS - 1000])):
            file = paths.table_shard("t", number, 2)
            with ShardWriter(stage.directory / file) as writer:
                writer.write(part)
                digest = writer.close()
            first = 0 if number == 0 else ROWS - 1000
            told = {"file": file, "first_row": first, "rows": len(part), "crc32c": digest.crc32c}
            shards.append(told | {"blocks": digest.blocks})
        (stage.directory / "indexes").mkdir()
        (stage.directory / "indexes/vectors.bin").write_bytes(np.random.default_rng(version).bytes(EXTRA))
        page = Manifest(
            model="m",
            version=version,
            created="2026-01-01T00:00:00+00:00",
            provenance=Provenance(
                checkpoint="ckpt-1", step=None, fingerprint="crc32c:0", model_code="", exporter="", libraries={}
            ),
            tables={
                "t": Table.model_validate(
                    {
                        "rows": ROWS,
                        "dim": DIM,
                        "dtype": "float32",
                        "shards": tuple(shards),
                        "source": TableSource(layout="plain", key="t"),
                    }
                )
            },
            features={"t": EmbeddedFeature(kind="single", table="t", role="context")},
            towers={},
            verification=Verification(
                tables={"t": TableCheck(rows_compared=ROWS, rows=ROWS)}, examples=0, tolerance=""
            ),
            files=stage.digests("indexes"),
        )
        stage.commit(page)
        return page


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with versions 1 and 2 of model `m`."""
    made = tmp_path_factory.mktemp("made")
    for version in (1, 2):
        write(made, version)
    return made


@pytest.fixture
def store(made: Path, tmp_path: Path) -> RemotePath:
    """The same in a store, with an unfinished version 3."""
    store = uploaded(made, RemotePath(f"counted://{tmp_path.name}/bundles"))
    (store / "m/3/tables/t/rows-00000-of-00001.bin").write(b"unfinished")
    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def brought(url: object, root: Path, version: int | None = None, keep: int | None = None) -> Pulled:
    return pull(find_bundle(str(url), None, version), root, keep, lambda wanted: lambda moved: None)


def moved(store: RemotePath) -> int:
    return CountedStore.moved[store.parent.name]


@pytest.mark.parametrize("given", ["", "m", "m/2"])
def test_pull_root_model_or_bundle_brings_the_newest_complete_version(
    store: RemotePath, root: Path, made: Path, given: str
) -> None:
    pulled = brought(store / given if given else store, root)
    assert (pulled.bundle, pulled.version) == (root / "m/2", 2)
    assert pulled.downloaded_bytes == pulled.bytes == ROWS * DIM * 4 + EXTRA
    page = staging.read_manifest(root / "m/2")
    staging.check_files(root / "m/2", page, tables="full")
    assert (root / "m/2/manifest.json").read_bytes() == (made / "m/2/manifest.json").read_bytes()
    assert os.listdir(root / "m") == ["2"]


def test_pull_again_fetches_nothing(store: RemotePath, root: Path) -> None:
    brought(store, root)
    before = moved(store)
    pulled = brought(store, root)
    assert (pulled.downloaded_bytes, pulled.kept_bytes) == (0, pulled.bytes)
    assert moved(store) - before < 10_000


def test_pull_that_was_stopped_goes_on_at_verified_blocks(store: RemotePath, root: Path, made: Path) -> None:
    vectors = store / "m/2/indexes/vectors.bin"
    kept = vectors.read(0, EXTRA)
    vectors.remove()
    with pytest.raises(SourceUnreadable, match=r"vectors\.bin cannot be read"):
        brought(store, root)
    for whole in (made / "m/2/tables/t").iterdir():  # which of the requests under way ended is left to chance
        (root / "m/.staging-2/tables/t" / whole.name).write_bytes(whole.read_bytes())
    shard = root / "m/.staging-2/tables/t/rows-00000-of-00002.bin"
    with shard.open("r+b") as file:  # a block that did not reach the disk, and one that did in part
        file.seek(BLOCK_BYTES)
        file.write(bytes(BLOCK_BYTES))
    vectors.write(kept)
    before = moved(store)
    pulled = brought(store, root)
    assert pulled.downloaded_bytes == BLOCK_BYTES + EXTRA
    assert pulled.kept_bytes == pulled.bytes - pulled.downloaded_bytes
    assert moved(store) - before < pulled.downloaded_bytes + 10_000
    staging.check_files(root / "m/2", staging.read_manifest(root / "m/2"), tables="full")


@pytest.mark.parametrize("path", ["tables/t/rows-00000-of-00002.bin", "indexes/vectors.bin"])
def test_pull_file_that_differs_from_its_checksum_publishes_nothing(store: RemotePath, root: Path, path: str) -> None:
    file = store / "m/2" / path
    data = bytearray(file.read(0, 1 << 30))
    data[BLOCK_BYTES + 5] ^= 1
    file.write(bytes(data))
    with pytest.raises(Damaged, match=path):
        brought(store, root)
    assert not (root / "m/2").exists()


def replace_manifest(store: RemotePath) -> None:
    page = find_bundle(str(store)).page.model_copy(update={"created": "2026-01-02T00:00:00+00:00"})
    (store / "m/2/manifest.json").write(dump(page))


def test_pull_manifest_that_was_replaced_begins_anew(store: RemotePath, root: Path) -> None:
    vectors = store / "m/2/indexes/vectors.bin"
    kept = vectors.read(0, EXTRA)
    vectors.remove()
    with pytest.raises(SourceUnreadable):
        brought(store, root)
    vectors.write(kept)
    replace_manifest(store)
    assert brought(store, root).kept_bytes == 0


def test_pull_other_bundle_of_that_version_is_refused(store: RemotePath, root: Path) -> None:
    brought(store, root)
    replace_manifest(store)
    with pytest.raises(DestinationProblem, match="holds another bundle"):
        brought(store, root)


def test_pull_version_that_is_being_pulled_is_refused(store: RemotePath, root: Path) -> None:
    with Staging(root, "m", 2), pytest.raises(DestinationProblem, match="another run"):
        brought(store, root)


def test_pull_keep_removes_old_versions_that_nothing_uses(store: RemotePath, root: Path) -> None:
    for version in (5, 6, 7):
        (root / f"m/{version}").mkdir(parents=True)
        (root / f"m/{version}/manifest.json").touch()
    held = retention.hold(root / "m/5")
    assert held is not None
    pulled = brought(store, root, keep=1)
    os.close(held)
    assert (pulled.removed, pulled.in_use) == ((6,), (5,))
    assert sorted(os.listdir(root / "m")) == ["2", "5", "7"]


@pytest.mark.parametrize(
    ("place", "model", "version", "problem", "what"),
    [
        ("none", None, None, SourceUnreadable, "is empty, or is not there"),
        ("", "other", None, UsageProblem, "holds no model 'other'; it holds m"),
        ("", "m", 9, UsageProblem, "there are: 3, 2, 1"),
        ("m/1", "m", 2, UsageProblem, "was not asked for"),
    ],
)
def test_find_bundle_what_is_not_there_is_told(
    store: RemotePath, place: str, model: str | None, version: int | None, problem: type[Exception], what: str
) -> None:
    with pytest.raises(problem, match=what):
        find_bundle(f"{store}/{place}", model, version)


def test_find_bundle_local_path_is_read_too(made: Path) -> None:
    assert find_bundle(str(made)).page.version == 2


def test_find_bundle_manifest_that_is_none_is_told(store: RemotePath) -> None:
    (store / "m/2/manifest.json").write(b"{}")
    with pytest.raises(SourceUnreadable, match=r"manifest\.json: "):
        find_bundle(str(store))
