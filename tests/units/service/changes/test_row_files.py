"""Changed rows move from the memory of each process into a file that all of them map."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from bundle.tables import changed_rows
from service.changes import row_files
from service.engine.calls import LookupRequest
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.making import TARGET, change
from tests.units.service.running import RunningService, column, flip

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has files hold more than four rows, and no thread write them."""
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 4 * 32)
    monkeypatch.setattr(row_files, "_WRITTEN_SHARE", 1 << 30)
    monkeypatch.setattr("service.changes.follower._ABSORB_S", 1e6)


def set_users(service: RunningService, first: int, count: int, value: float) -> None:
    items = [{"id": first + number, "vector": [value] * 8} for number in range(count)]
    change(service, "rows/upsert", *items, table="users")


def users(service: RunningService) -> list[float]:
    return [
        row[0]
        for row in service.execute(
            LookupRequest(TARGET, "user", column(*range(50))), "lookup"
        ).vectors.tolist()
    ]


def counts(service: RunningService) -> tuple[int, int]:
    """Returns how many changed rows are read from memory and from the file, as the status and the
    metric have it.
    """
    (version,) = service.worker.changes.status("movies")["versions"]
    rows = version["rows"]["users"]
    assert version["changed"]["table users"] == rows["memory"] + rows["file"]
    for storage, count in rows.items():
        labels = {"model": "movies", "table": "users", "storage": storage}
        until(lambda: service.value("rowcast_changed_rows", **labels) == count)  # noqa: B023
    return rows["memory"], rows["file"]


def versions(service: RunningService) -> list[int]:
    """Returns the versions that changes are applied to."""
    return [entry["version"] for entry in service.worker.changes.status("movies")["versions"]]


def absorb(service: RunningService) -> None:
    service.worker.changes.absorb_rows()


def nameless_files(directory: Path) -> list[str]:
    """Returns the files without a name in a directory that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if f" {directory}/" in line and line.endswith("(deleted)")]


def row_file(service: RunningService, version: int = 1) -> Path:
    log = service.worker.changes.path_of("movies")
    return log.with_name(f"{log.name}.rows-{version}-users")


@pytest.mark.parametrize("row_types", [{}, {"users": "int8"}], ids=["float32", "int8"])
def test_every_process_reads_rows_from_one_file_as_from_its_memory(
    write: Write, serve: Serve, row_types: dict[str, str]
) -> None:
    write(row_types=row_types)
    services = [serve(), serve()]
    set_users(services[0], 0, 4, 1.0)
    absorb(services[0])
    assert counts(services[0]) == (4, 0)
    set_users(services[0], 2, 6, 2.0)
    until(lambda: services[1].current().changes == 2)
    expected = users(services[0])
    absorb(services[0])
    assert counts(services[0]) == (0, 8)
    assert counts(services[1]) == (8, 0)
    set_users(services[1], 5, 2, 3.0)
    until(lambda: services[0].current().changes == 3)
    absorb(services[1])
    assert [counts(service) for service in services] == [(2, 6), (2, 6)]
    expected[5:7] = [expected[5] * 1.5] * 2
    for service in (*services, serve()):
        absorb(service)
        assert users(service) == pytest.approx(expected)
        assert users(service) == users(services[0])
        assert counts(service) == (2, 6)


def test_a_file_is_replaced_and_those_of_older_versions_are_removed(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve()
    set_users(service, 0, 6, 1.0)
    absorb(service)
    first = row_file(service).stat().st_ino
    unfinished = row_file(service).with_name(f".{row_file(service).name}-0123")
    unfinished.touch()
    with service.worker.versions.acquire("movies") as before:
        set_users(service, 3, 6, 2.0)
        absorb(service)
        assert row_file(service).stat().st_ino != first
        assert not unfinished.exists()
        assert counts(service) == (0, 9)
        assert before.reader.take("users", np.array([0, 3]))[:, 0].tolist() == [1.0, 1.0]
    assert users(service)[:9] == [1.0] * 3 + [2.0] * 6
    for version in (2, 3):  # the one before the current version is kept
        write(version=version)
        service.scan()
    set_users(service, 0, 6, 4.0)
    until(lambda: versions(service) == [2, 3])
    absorb(service)
    assert row_file(service, 3).exists()
    assert not row_file(service).exists()
    assert users(service)[:6] == [4.0] * 6


def test_a_process_with_a_damaged_file_goes_on_with_its_memory(
    write: Write, serve: Serve, stream: TextIO
) -> None:
    write()
    services = [serve(), serve()]
    set_users(services[0], 0, 6, 1.0)
    absorb(services[0])
    until(lambda: services[1].current().changes == 1)
    path = row_file(services[0])
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    flip(copy, 4200)
    copy.replace(path)  # the first process keeps the sound one
    absorb(services[1])
    assert users(services[1]) == users(services[0])
    until(lambda: "changed_rows_not_absorbed" in Path(stream.name).read_text())
    assert "does not match its checksum" in Path(stream.name).read_text()
    assert counts(services[1]) == (0, 6)  # it has written the file anew


def test_a_file_that_cannot_be_written_leaves_rows_in_memory(
    write: Write, serve: Serve, stream: TextIO
) -> None:
    write()
    service = serve()
    row_file(service).with_name(f"{row_file(service).name}.lock").mkdir()
    set_users(service, 0, 6, 1.0)
    absorb(service)
    assert counts(service) == (6, 0)
    assert users(service)[:6] == [1.0] * 6
    until(lambda: "Is a directory" in Path(stream.name).read_text())


def test_a_start_lays_many_rows_into_a_file_without_a_name_until_the_file_of_all_is_mapped(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    service = serve()
    for number in range(10):
        set_users(service, 10 * (number % 5), 10, float(number))
    absorb(service)
    expected = users(service)
    monkeypatch.setattr(changed_rows, "_UNMAPPED_BYTES", 64 * 32)
    restarted = serve()
    directory = service.worker.changes.path_of("movies").parent
    assert nameless_files(directory), "100 changes of rows of 32 bytes are more than is in memory"
    assert users(restarted) == expected
    assert counts(restarted) == (50, 0)
    absorb(restarted)
    assert counts(restarted) == (0, 50)
    assert users(restarted) == expected
    until(lambda: gc.collect() >= 0 and not nameless_files(directory))


def test_a_file_of_another_history_is_replaced(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    set_users(service, 0, 9, 1.0)
    absorb(service)
    log = service.worker.changes.path_of("movies")
    log.rename(log.with_name("older"))
    restarted = serve()
    set_users(restarted, 2, 6, 2.0)
    absorb(restarted)
    assert counts(restarted) == (0, 6)
    assert users(restarted)[2:8] == [2.0] * 6
    assert users(restarted)[0] != 1.0
