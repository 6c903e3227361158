"""Versions that come, go, break and change while a service runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundle import mapped_files
from bundle.manifest import dump
from service.engine.requests import Recommendation, Retrieval, Target
from service.errors import DataLoss, NotReady
from tests.service import oracles
from tests.service.process import until
from tests.service.running import CALL, Running, WaitingTower, column, flip, touch, version_of
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


def test_newest_valid_version_is_served(write: Write, run: Run) -> None:
    for version in (1, 2, 10):
        write(version=version)
    service = run()
    assert version_of(service) == 10
    assert service.states() == {10: "available"}


def test_new_version_takes_over_and_the_old_one_is_kept_to_go_back_to(write: Write, run: Run) -> None:
    write()
    service = run()
    for version in (2, 3):
        write(version=version)
        service.scan()
        assert version_of(service) == version
        assert service.states() == {version: "available", version - 1: "kept"}


def test_old_version_is_gone_at_once_where_none_is_kept(write: Write, run: Run) -> None:
    write()
    service = run(keep_previous=False)
    write(version=2)
    service.scan()
    assert version_of(service) == 2
    assert service.states() == {2: "available"}


def test_kept_version_that_is_removed_from_the_root_is_let_go(write: Write, run: Run) -> None:
    first = write()
    service = run()
    write(version=2)
    service.scan()
    shutil.rmtree(first.directory)
    service.scan()
    assert service.states() == {2: "available"}


def test_second_look_at_an_unchanged_root_loads_nothing(write: Write, run: Run) -> None:
    write()
    write(version=2)
    service = run()
    before = service.switch.current("movies")
    service.scan()
    assert service.switch.current("movies") is before


def test_several_models_live_side_by_side(write: Write, run: Run) -> None:
    write(model="films")
    write(model="books", version=4)
    service = run()
    assert service.switch.available() == {"books", "films"}


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda small: flip(small.directory / "indexes/movies/vectors.bin"), "vectors.bin"),
        (lambda small: flip(small.directory / "towers/query/compiled-f32.tflite"), "compiled-f32.tflite"),
        (lambda small: (small.directory / "candidates/movies/store.arrow").unlink(), "store.arrow"),
        (lambda small: os.truncate(next((small.directory / "tables/users").iterdir()), 64), "tables/users"),
        (lambda small: shutil.rmtree(small.directory / "tables/cities"), "tables/cities"),
        (lambda small: (small.directory / "manifest.json").write_bytes(b"{"), "manifest is no JSON"),
        (lambda small: _rewrite(small, version=7), "version 7"),
        (lambda small: _rewrite(small, escape=True), "inside the bundle"),
    ],
)
def test_broken_new_version_is_refused_and_the_old_one_keeps_serving(
    write: Write, run: Run, damage: Callable[[SmallBundle], None], problem: str
) -> None:
    write()
    service = run()
    damage(write(version=2))
    service.scan()
    assert version_of(service) == 1
    assert service.states() == {2: "refused", 1: "available"}
    assert problem in service.problem(2)
    assert service.value("rowcast_loads_total", model="movies", outcome="refused") == 1


def _rewrite(small: SmallBundle, version: int = 2, escape: bool = False) -> None:
    users = small.manifest.tables["users"]
    first = users.shards[0].model_copy(update={"file": ("../../1/" if escape else "") + users.shards[0].file})
    tables = {**small.manifest.tables, "users": users.model_copy(update={"shards": (first, *users.shards[1:])})}
    page = small.manifest.model_copy(update={"version": version, "tables": tables})
    (small.directory / "manifest.json").write_bytes(dump(page))


def test_at_start_a_broken_version_falls_back_to_the_next_older_one(write: Write, run: Run) -> None:
    write()
    write(version=2)
    for version in (3, 4):
        flip(write(version=version).directory / "indexes/movies/vectors.bin")
    service = run()
    assert version_of(service) == 2
    assert service.states() == {4: "refused", 3: "refused", 2: "available"}


def test_model_whose_only_version_is_broken_is_not_ready_and_says_so(write: Write, run: Run) -> None:
    flip(write().directory / "indexes/movies/vectors.bin")
    service = run()
    assert not service.engine.ready
    with pytest.raises(NotReady, match="no version that could be loaded"):
        version_of(service)


def test_refused_version_that_is_removed_is_forgotten(write: Write, run: Run) -> None:
    write()
    broken = write(version=2)
    flip(broken.directory / "indexes/movies/vectors.bin")
    service = run()
    shutil.rmtree(broken.directory)
    service.scan()
    assert service.states() == {1: "available"}


def test_version_removed_from_the_root_keeps_serving_until_a_newer_one_comes(write: Write, run: Run) -> None:
    write()
    second = write(version=2)
    service = run()
    shutil.rmtree(second.directory)
    service.scan()
    assert version_of(service) == 2
    write(version=3)
    service.scan()
    assert version_of(service) == 3


def test_root_removed_altogether_keeps_serving(write: Write, run: Run, root: Path) -> None:
    write()
    service = run()
    shutil.rmtree(root)
    service.scan()
    assert version_of(service) == 1


def test_version_written_again_under_its_number_replaces_itself(write: Write, run: Run) -> None:
    first = write()
    service = run()
    before = service.switch.current("movies")
    shutil.rmtree(first.directory)
    write(size=30)
    touch(first.directory / "manifest.json")
    service.scan()
    assert service.switch.current("movies") is not before
    answer = service.ask(service.engine.retrieve(Retrieval(Target(), vectors=np.ones(8, np.float32)), CALL))
    assert answer.searched == 30


def test_staging_and_foreign_files_are_ignored(write: Write, run: Run, root: Path) -> None:
    small = write()
    shutil.copytree(small.directory, root / "movies" / ".staging-2")
    shutil.copytree(small.directory, root / "movies" / "latest")
    (root / "movies" / "3").mkdir()
    (root / "movies" / "notes.txt").touch()
    (root / "notes.txt").touch()
    (root / ".hidden").mkdir()
    (root / "no bundles here").mkdir()
    service = run()
    assert {name: service.states(name) for name in service.switch.models()} == {"movies": {1: "available"}}


def test_version_that_needs_too_much_memory_is_refused(write: Write, run: Run) -> None:
    write()
    service = run(load_bytes_max=1)
    assert service.states() == {1: "refused"}
    assert "load_bytes_max" in service.problem(1)


def test_full_verification_finds_a_flipped_table_byte_before_serving(write: Write, run: Run) -> None:
    flip(next((write().directory / "tables/users").iterdir()))
    service = run(verify="full")
    assert "tables/users" in service.problem(1)


def test_parts_that_do_not_fit_each_other_fail_the_warm_up(write: Write, run: Run) -> None:
    small = write()
    features = dict(small.manifest.features)
    features["user"] = features["user"].model_copy(update={"table": "cities"})
    page = small.manifest.model_copy(update={"features": features})
    (small.directory / "manifest.json").write_bytes(dump(page))
    service = run()
    assert service.states() == {1: "refused"}


def test_flipped_table_byte_found_while_serving_falls_back_to_the_previous_version(write: Write, run: Run) -> None:
    write()
    newer = write(version=2)
    service = run()
    flip(next((newer.directory / "tables/users").iterdir()))
    service.watcher.check()
    assert service.states() == {2: "refused"}
    service.scan()
    assert version_of(service) == 1
    assert service.states() == {2: "refused", 1: "available"}
    assert "does not match its checksum" in service.problem(2)
    service.scan()
    assert version_of(service) == 1


def test_flipped_table_byte_without_an_older_version_answers_data_loss(write: Write, run: Run) -> None:
    small = write()
    service = run()
    flip(next((small.directory / "tables/users").iterdir()))
    service.watcher.check()
    service.scan()
    assert not service.engine.ready
    with pytest.raises(DataLoss, match="does not match its checksum"):
        version_of(service)
    with pytest.raises(DataLoss):
        service.engine.model(Target())
    write(version=2)
    service.scan()
    assert version_of(service) == 2


def test_sound_tables_are_checked_once(write: Write, run: Run) -> None:
    small = write()
    service = run()
    service.watcher.check()
    service.watcher.check()
    assert service.states() == {1: "available"}
    total = sum(rows.nbytes for rows in small.tables.values())
    assert service.value("rowcast_checked_bytes_total", model="movies") == total


def test_int8_and_linked_tables_are_checked_in_full(write: Write, run: Run) -> None:
    small = write(row_types={"users": "linked", "movies": "int8"})
    service = run(verify="full")
    service.watcher.check()
    assert service.states() == {1: "available"}
    total = sum(table.bytes for table in small.manifest.tables.values())
    assert service.value("rowcast_checked_bytes_total", model="movies") == total


@pytest.mark.parametrize(
    "file", ["users/rows-00000-of-00001", "movies/rows-00001-of-00002", "movies/scales-00001-of-00002"]
)
def test_flipped_byte_of_an_int8_or_linked_table_is_found_while_serving(write: Write, run: Run, file: str) -> None:
    small = write(row_types={"users": "linked", "movies": "int8"})
    service = run()
    flip(small.directory / f"tables/{file}.bin", at=50)
    service.watcher.check()
    assert f"tables/{file}.bin' (" in service.problem(1)
    assert f"tables/{file}.bin" in run(verify="full").problem(1)


def test_flipped_byte_of_many_vectors_is_found_while_serving_or_by_a_full_check(
    write: Write, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write()
    newer = write(version=2)
    flip(newer.directory / "indexes/movies/vectors.bin")
    monkeypatch.setattr(mapped_files, "VECTORS_BYTES_MAX", 64)
    service = run()
    assert service.states() == {2: "available"}
    service.watcher.check()
    service.scan()
    assert service.states() == {2: "refused", 1: "available"}
    assert "indexes/movies/vectors.bin' (" in service.problem(2)
    service.watcher.check()
    total = small.vectors.nbytes + sum(rows.nbytes for rows in small.tables.values())
    assert service.value("rowcast_checked_bytes_total", model="movies") == total
    assert "vectors.bin" in run(verify="full").problem(2)


def test_linked_file_that_was_cut_short_is_found_while_serving(write: Write, run: Run) -> None:
    small = write(row_types={"users": "linked"})
    service = run()
    file = small.directory / "tables/users/rows-00000-of-00001.bin"
    os.truncate(file, file.stat().st_size - 7)
    service.watcher.check()
    assert "does not match its checksum" in service.problem(1)


def test_version_removed_while_it_is_checked_is_not_data_loss(write: Write, run: Run) -> None:
    small = write()
    service = run()
    shutil.rmtree(small.directory)
    service.watcher.check()
    assert version_of(service) == 1


def test_old_version_retires_only_after_its_last_request(write: Write, run: Run) -> None:
    write()
    service = run(keep_previous=False)
    old = service.switch.current("movies")
    assert old is not None
    tower = WaitingTower(old.towers["query"].parts[0].network)
    service.with_network("query", tower)

    async def swap() -> None:
        asked = asyncio.create_task(service.engine.retrieve(Retrieval(Target(), features={"user": column(1)}), CALL))
        assert await asyncio.to_thread(tower.entered.wait, 20)
        write(version=2)
        await asyncio.to_thread(service.scan)
        assert service.states() == {2: "available", 1: "retiring"}
        tower.let_go.set()
        assert (await asked).version == 1

    asyncio.run(swap())
    until(lambda: service.states() == {2: "available"})  # a thread closes what was left


def test_swaps_under_load_fail_no_call_and_mix_no_versions(write: Write, run: Run) -> None:
    versions = {1: write()}
    service = run()
    context = {"user": column(4), "mood": column(0.5, -0.5)}
    request = Recommendation(Target(), context, k=3, candidates=8, attributes=("title",))
    first_asked, done = threading.Event(), threading.Event()
    answers = []

    async def ask_on() -> None:
        last = False
        while not last:
            last = done.is_set()  # asks once more after the last switch
            answers.append(await service.engine.recommend(request, CALL))
            first_asked.set()

    async def callers() -> None:
        await asyncio.gather(*(ask_on() for _ in range(8)))

    def publish() -> None:
        try:
            assert first_asked.wait(20)
            for version in range(2, 8):
                versions[version] = write(version=version)
                service.scan()
        finally:
            done.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    asyncio.run(callers())
    publisher.join()

    assert {answer.version for answer in answers} >= {1, 7}
    expected = {version: _recommended(small) for version, small in versions.items()}
    for answer in answers:
        ids, scores, titles = expected[answer.version]
        assert answer.neighbors.ids.tolist() == ids
        np.testing.assert_allclose(answer.neighbors.scores, scores, 1e-5, 1e-5)
        assert answer.neighbors.attributes["title"] == titles


def _recommended(small: SmallBundle) -> tuple[list[int], list[float], list[str]]:
    near = oracles.neighbors(small, oracles.query_vector(small, 4), 8)
    rows = sorted(
        ((oracles.ranked(small, movie, 4, mood=(0.5, -0.5))["score"], movie) for movie, _ in near), reverse=True
    )
    ids = [movie for _, movie in rows[:3]]
    return ids, [score for score, _ in rows[:3]], [small.titles[small.ids.tolist().index(movie)] for movie in ids]
