"""The checks of a bundle, their findings, and failures of its readers as failed checks."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from bundle.errors import FormatError, NotCommitted
from bundle.format.manifest import Manifest, Segment, Table, TableCheck, TableSource
from bundle.storage.catalog import read_manifest
from export.checkpoint.reader import open_checkpoint
from export.errors import ExportError, UsageError, VerificationFailed
from export.tables.dumped import SAMPLED_BLOCKS, SAMPLED_KEYS
from export.verify.checks import (
    OF_BUNDLE,
    OF_MODEL,
    CheckedBundle,
    Findings,
    check_bundle,
    raising_verification_failed,
)
from export.verify.stated_layouts import StatedLayout
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.tables.test_key_indexes import dumped, indexed

GOLDEN = Path(__file__).parents[3] / "differential/bundle/root/movies/1"


@pytest.mark.parametrize(
    ("problem", "kind", "expected_text"),
    [
        (NotCommitted("no manifest"), UsageError, "no manifest"),
        (FormatError("it is torn"), VerificationFailed, "it is torn"),
        (
            OSError(errno.EIO, "Input/output error", "rows.bin"),
            VerificationFailed,
            "rows.bin: Input/output error",
        ),
        (OSError("gone"), VerificationFailed, "a file: gone"),
    ],
)
def test_what_a_reader_of_the_bundle_rejects_is_a_failed_check(
    problem: Exception, kind: type[ExportError], expected_text: str
) -> None:
    with pytest.raises(kind) as failure, raising_verification_failed():
        raise problem
    assert str(failure.value) == expected_text


def test_bundle_alone_is_checked_without_a_checkpoint_and_a_model() -> None:
    manifest = read_manifest(GOLDEN)
    findings = check_bundle(CheckedBundle(GOLDEN, manifest), (*OF_BUNDLE, *OF_MODEL))
    listed = {str(file.path) for file in manifest.files}
    listed |= {
        str(segment.file) for table in manifest.tables.values() for segment in table.segments
    }
    listed |= {str(segment.file) for table in manifest.tables.values() for segment in table.scales}
    assert findings.files == len(listed)
    assert findings.bytes == sum((GOLDEN / file).stat().st_size for file in listed)
    assert (findings.tables, findings.examples, findings.recall, findings.unlisted) == (
        {},
        0,
        {},
        (),
    )
    assert set(findings.opened) >= {
        "table users",
        "tower query, saved_model f32",
        "tower query, litert f32",
        "corpus movies",
        "index movies",
    }
    assert check_bundle(CheckedBundle(GOLDEN, manifest), ()) == Findings()


VALUES = np.arange(40, dtype=np.float32).reshape(20, 2)


def tables_of(directory: Path, rows: int | None, **changes: Any) -> CheckedBundle:
    """Returns a bundle of two tables of 20 rows as it is compared with its checkpoint."""
    write_bundle(directory / "ckpt", dict.fromkeys("ab", VALUES))
    tables = {}
    for name in "ab":
        data = VALUES.tobytes()
        (directory / name).write_bytes(data)
        crc = google_crc32c.value(data)
        segment = Segment(file=name, first_row=0, rows=20, crc32c=crc, blocks=(crc,))
        source = TableSource(layout="plain", key=name)
        tables[name] = Table(rows=20, dim=2, dtype="float32", segments=(segment,), source=source)
    construct: Any = Manifest.model_construct
    manifest = construct(tables=tables, keys={})
    return CheckedBundle(directory, manifest, open_checkpoint(directory), rows, **changes)


@pytest.mark.parametrize(
    ("rows", "compared"), [(5, (5, 0)), (19, (19, 0)), (20, (20, 20)), (None, (20, 20))]
)
def test_rows_of_linked_tables_are_compared_all_or_none(
    tmp_path: Path, rows: int | None, compared: tuple[int, int]
) -> None:
    """A link is the checkpoint's own file: only a comparison of all rows with their digest
    proves anything.
    """
    judged = {"a": StatedLayout("accepted")}
    checked = tables_of(tmp_path, rows, linked={"b"}, layouts=judged)
    first, second = compared
    assert check_bundle(checked, ["rows"]).tables == {
        "a": TableCheck(rows_compared=first, rows=20, stated_layout="accepted"),
        "b": TableCheck(rows_compared=second, rows=20),
    }


def test_failed_table_names_the_steps_that_make_it(tmp_path: Path) -> None:
    def steps_of(name: str) -> Sequence[str]:
        return [f"rows of {name}"]

    checked = tables_of(tmp_path, None, steps_of=steps_of)
    (tmp_path / "b").write_bytes((VALUES + 1).tobytes())
    with pytest.raises(VerificationFailed, match="table 'b': row 0 differs") as failure:
        check_bundle(checked, ["rows"])
    assert failure.value.steps == ("rows of b",)


def test_damaged_file_of_a_bundle_fails_the_check_of_files(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(GOLDEN, tmp_path / "1"))
    checked = CheckedBundle(bundle, read_manifest(bundle))
    check_bundle(checked, ["files"])
    vectors = bundle / checked.manifest.indexes["movies"].vectors
    data = bytearray(vectors.read_bytes())
    data[5] ^= 1
    vectors.write_bytes(data)
    with pytest.raises(VerificationFailed, match=r"indexes/movies/vectors\.bin"):
        check_bundle(checked, ["files"])


@pytest.mark.parametrize(("rows", "fails"), [(5, False), (None, True)])
def test_keys_of_a_table_are_compared_some_or_all_as_its_rows_are(
    tmp_path: Path, rows: int | None, fails: bool
) -> None:
    count = 3 * SAMPLED_KEYS * SAMPLED_BLOCKS
    keys = np.arange(count) * 2
    tables, entries = indexed(tmp_path, keys)
    values = np.zeros((count, 2), np.float32)
    values.tofile(tmp_path / "bundle" / "rows")
    crc = google_crc32c.value(values.tobytes())
    segment = Segment(file="rows", first_row=0, rows=count, crc32c=crc, blocks=(crc,))
    table = Table(
        rows=count, dim=2, dtype="float32", segments=(segment,), source=tables["t"].source
    )
    construct: Any = Manifest.model_construct
    manifest = construct(tables={"t": table}, keys=entries)
    keys[SAMPLED_KEYS] += 1  # right behind those of the first sample
    checked = CheckedBundle(tmp_path / "bundle", manifest, dumped(tmp_path, keys), rows)
    if fails:
        with pytest.raises(VerificationFailed, match=f"of the dump is row {SAMPLED_KEYS} there"):
            check_bundle(checked, ["rows"])
    else:
        check_bundle(checked, ["rows"])
    keys[0] += 1
    checked = replace(checked, checkpoint=dumped(tmp_path, keys))
    with pytest.raises(VerificationFailed, match="of the dump is row 0 there and row -1 by"):
        check_bundle(checked, ["rows"])
