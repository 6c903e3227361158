"""The scrub of versions that are served, and full verification before."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from bundle import mapped_files
from service.errors import DataLoss
from tests.service.models.driven import Driven, Write, flip

Drive = Callable[..., Driven]


def scrubbed(driven: Driven) -> float:
    return driven.value("rowcast_scrubbed_bytes_total", model="movies")


def test_scrub_damaged_version_falls_back_to_the_previous_one(write: Write, drive: Drive) -> None:
    write()
    driven = drive()
    newer = write(version=2)
    driven.scan()
    flip(next((newer.directory / "tables/users").iterdir()))
    driven.poller.scrub()
    for _ in range(2):
        assert driven.serving() == 1
        assert driven.states() == {2: "failed", 1: "available"}
        assert "does not match its checksum" in driven.problem(2)
        driven.scan()


def test_scrub_damaged_version_loads_an_older_one_that_is_not_loaded(write: Write, drive: Drive) -> None:
    write()
    newer = write(version=2)
    driven = drive()
    flip(next((newer.directory / "tables/users").iterdir()))
    driven.poller.scrub()
    assert driven.states() == {2: "failed"}
    driven.scan()
    assert driven.states() == {2: "failed", 1: "available"}


def test_scrub_damaged_only_version_is_data_loss_until_another_comes(write: Write, drive: Drive) -> None:
    small = write()
    driven = drive()
    flip(next((small.directory / "tables/users").iterdir()))
    driven.poller.scrub()
    driven.scan()
    assert driven.manager.available() == set()
    with pytest.raises(DataLoss, match="does not match its checksum"):
        driven.serving()
    write(version=2)
    driven.scan()
    assert driven.serving() == 2


@pytest.mark.parametrize("row_types", [{}, {"users": "linked", "movies": "int8"}])
def test_scrub_sound_tables_reads_each_byte_once(write: Write, drive: Drive, row_types: dict[str, str]) -> None:
    small = write(row_types=row_types)
    driven = drive(verify="full")
    driven.poller.scrub()
    driven.poller.scrub()
    assert driven.states() == {1: "available"}
    assert scrubbed(driven) == sum(table.bytes for table in small.manifest.tables.values())


@pytest.mark.parametrize(
    "file", ["users/rows-00000-of-00001", "movies/rows-00001-of-00002", "movies/scales-00001-of-00002"]
)
def test_scrub_finds_a_flipped_byte_of_int8_and_linked_tables(write: Write, drive: Drive, file: str) -> None:
    small = write(row_types={"users": "linked", "movies": "int8"})
    driven = drive()
    flip(small.directory / f"tables/{file}.bin", at=50)
    driven.poller.scrub()
    assert f"tables/{file}.bin' (" in driven.problem(1)
    assert f"tables/{file}.bin" in drive(verify="full").problem(1)


def test_scrub_finds_a_flipped_byte_of_large_vector_files(
    write: Write, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write()
    flip(write(version=2).directory / "indexes/movies/vectors.bin")
    monkeypatch.setattr(mapped_files, "VECTORS_BYTES_MAX", 64)
    driven = drive()
    assert driven.states() == {2: "available"}
    driven.poller.scrub()
    driven.scan()
    assert driven.states() == {2: "failed", 1: "available"}
    assert "indexes/movies/vectors.bin' (" in driven.problem(2)
    driven.poller.scrub()
    assert scrubbed(driven) == small.vectors.nbytes + sum(rows.nbytes for rows in small.tables.values())


def test_scrub_version_removed_from_the_root_is_no_data_loss(write: Write, drive: Drive) -> None:
    small = write()
    driven = drive()
    shutil.rmtree(small.directory)
    driven.poller.scrub()
    assert driven.serving() == 1
