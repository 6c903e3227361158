"""Bundles of workload R that differ from it in one thing, and share the files of all others with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bundle.manifest import Manifest, Table, TableCheck
from bundle.paths import MANIFEST
from bundle.staging import Staging, read_manifest
from bundle.tables import TableReader
from tests.bench.workloads import RankingWorkload, write_table


def write_whole_tower(work: RankingWorkload, root: Path, model: str) -> RankingWorkload:
    """Writes it with a ranking tower that runs whole for each candidate, not in parts."""
    page = read_manifest(work.directory)
    towers = {name: tower.model_copy(update={"parts": ()}) for name, tower in page.towers.items()}
    with _linked(work.directory, page, root, model) as stage:
        directory = stage.commit(page.model_copy(update={"model": model, "towers": towers}))
    return replace(work, directory=directory, model=model)


def write_fewer_rows(work: RankingWorkload, root: Path, share: int) -> None:
    """Writes it with the first of every `share` rows of each table, rounded up; requests for it have other ids."""
    page = read_manifest(work.directory)
    with _linked(work.directory, page, root, work.model) as stage:
        tables = {name: _cut(work.directory, stage.directory, name, page.tables[name], share) for name in page.tables}
        checks = {name: TableCheck(rows_compared=0, rows=table.rows) for name, table in tables.items()}
        verification = page.verification.model_copy(update={"tables": checks})
        stage.commit(page.model_copy(update={"tables": tables, "verification": verification}))


@contextmanager
def _linked(directory: Path, page: Manifest, root: Path, model: str) -> Iterator[Staging]:
    with Staging(root, model, page.version) as stage:
        without = shutil.ignore_patterns(MANIFEST)
        shutil.copytree(directory, stage.directory, copy_function=os.link, ignore=without, dirs_exist_ok=True)
        yield stage


def _cut(source: Path, place: Path, name: str, page: Table, share: int) -> Table:
    for shard in page.shards:
        (place / shard.file).unlink()
    reader = TableReader(source, page)
    table = write_table(place, name, [reader.read(0, -(-page.rows // share))])
    reader.close()
    return table
