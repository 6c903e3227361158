"""What an operator wants, followed by a service that runs: pins, labels, rollbacks, versions in and out, a drain."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.engine.requests import Retrieval, Target
from service.errors import NotFound, NotReady
from service.generations import desired
from service.generations.desired import DesiredModel
from service.generations.generation import Generation
from service.generations.pauses import Pauses
from service.generations.watcher import DRAINED
from tests.service.running import CALL, Running, flip, version_of
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


def want(service: Running, edit: Callable[[DesiredModel], DesiredModel]) -> None:
    """Writes what is wanted of the model and has the service follow, without a look at the root."""
    service.state.update(lambda page: page.with_model("movies", edit(page.of("movies"))))
    service.watcher.follow()


def asked(service: Running, version: int) -> int:
    request = Retrieval(Target("movies", version), vectors=np.ones(8, np.float32))
    return service.ask(service.engine.retrieve(request, CALL)).version


@pytest.fixture
def two(write: Write, run: Run) -> Running:
    """Serves version 2; 1 is kept."""
    write()
    service = run()
    write(version=2)
    service.scan()
    assert version_of(service) == 2
    return service


def test_rollback_answers_at_once_and_lasts_until_a_newer_version_comes(two: Running, write: Write) -> None:
    loads = two.value("rowcast_loads_total", model="movies", outcome="available")
    want(two, lambda page: desired.rolled_back(page, 1, 2))
    assert version_of(two) == 1
    assert two.states() == {2: "kept", 1: "available"}
    two.scan()
    assert version_of(two) == 1
    assert two.value("rowcast_loads_total", model="movies", outcome="available") == loads
    write(version=3)
    two.scan()
    assert version_of(two) == 3
    assert two.states() == {3: "available", 1: "kept"}


def test_rollback_is_undone_at_once(two: Running) -> None:
    want(two, lambda page: desired.rolled_back(page, 1, 2))
    want(two, desired.unpinned)
    assert version_of(two) == 2


def test_kept_and_labelled_versions_answer_by_number(two: Running, write: Write) -> None:
    assert [asked(two, 1), asked(two, 2)] == [1, 2]
    write(version=3)
    two.scan()
    with pytest.raises(NotFound, match="versions 3, 2 are"):
        asked(two, 1)


def test_pinned_version_is_loaded_and_newer_ones_are_not(two: Running, write: Write) -> None:
    write(version=3)
    want(two, lambda page: desired.pinned(page, (1,)))
    assert version_of(two) == 1
    two.scan()
    assert version_of(two) == 1
    assert two.states() == {2: "kept", 1: "available"}
    want(two, desired.unpinned)
    assert version_of(two) == 2
    two.scan()
    assert version_of(two) == 3


def test_pin_that_cannot_be_loaded_leaves_what_answers(two: Running, write: Write) -> None:
    flip(write(version=3).directory / "indexes/movies/vectors.bin")
    want(two, lambda page: desired.pinned(page, (3,)))
    two.scan()
    assert version_of(two) == 2
    assert two.states()[3] == "refused"


def test_model_tells_the_labels_of_the_version_that_is_asked_for(two: Running) -> None:
    want(two, lambda page: desired.labelled(page, "stable", 1))
    told = [two.engine.model(Target("movies", None, label)) for label in ("", "stable")]
    assert [(each.version, each.current, each.labels) for each in told] == [(2, True, ()), (1, False, ("stable",))]


def test_label_moves_once_its_version_is_loaded(two: Running, write: Write) -> None:
    want(two, lambda page: desired.labelled(page, "stable", 1))
    assert two.switch.lease("movies", None, "stable").generation.version == 1
    write(version=3)
    want(two, lambda page: desired.labelled(page, "stable", 3))
    with two.switch.lease("movies", None, "stable") as generation:
        assert generation.version == 1
    two.scan()
    with two.switch.lease("movies", None, "stable") as generation:
        assert generation.version == 3


def test_version_taken_out_goes_once_another_answers(two: Running) -> None:
    want(two, lambda page: desired.unloaded(page, 2, automatic=True))
    assert version_of(two) == 1
    assert two.states() == {1: "available"}
    two.scan()
    assert two.states() == {1: "available"}
    want(two, lambda page: desired.loaded(page, 2, automatic=True))
    two.scan()
    assert version_of(two) == 2


def test_model_taken_out_is_gone_and_comes_back(two: Running) -> None:
    want(two, lambda page: desired.unloaded(page, None, automatic=True))
    two.scan()
    assert two.states() == {}
    with pytest.raises(NotReady):
        version_of(two)
    want(two, lambda page: desired.loaded(page, None, automatic=True))
    two.scan()
    assert version_of(two) == 2


def test_older_version_is_loaded_beside_the_newest(write: Write, run: Run) -> None:
    for version in (1, 2, 3):
        write(version=version)
    service = run()
    want(service, lambda page: desired.loaded(page, 1, automatic=False))
    service.scan()
    assert service.states() == {3: "available", 1: "available"}
    assert [asked(service, 1), version_of(service)] == [1, 3]


def test_latest_two_are_loaded(write: Write, run: Run) -> None:
    for version in (1, 2, 3):
        write(version=version)
    service = run(versions_latest=2)
    assert service.states() == {3: "available", 2: "available"}
    write(version=4)
    service.scan()
    assert service.states() == {4: "available", 3: "available"}


def test_drained_service_refuses_calls_and_is_not_ready_until_it_is_undrained(two: Running) -> None:
    two.state.update(lambda page: page.drained(draining=True))
    two.watcher.follow()
    with pytest.raises(NotReady, match="drained"):
        version_of(two)
    assert two.engine.problem == DRAINED
    with pytest.raises(NotReady, match="drained"):
        two.engine.enter("retrieve")
    two.state.update(lambda page: page.drained(draining=False))
    two.watcher.follow()
    assert version_of(two) == 2
    assert two.engine.ready


def test_wishes_survive_a_restart(two: Running, run: Run) -> None:
    want(two, lambda page: desired.rolled_back(page, 1, 2))
    want(two, lambda page: desired.labelled(page, "next", 2))
    again = run()
    assert version_of(again) == 1
    assert again.states() == {2: "available", 1: "available"}


def test_version_that_is_wanted_and_gone_from_the_root_is_told_until_it_comes(
    two: Running, run: Run, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    want(two, lambda page: desired.pinned(page, (1,)))
    aside = (root / "movies/1").rename(root / ".aside")
    again = run()
    again.scan()
    assert again.states() == {1: "refused"}
    assert "not in the root" in again.problem(1)
    assert [record.msg for record in caplog.records].count("version_refused") == 1
    with pytest.raises(NotReady, match="list of models tells why"):
        version_of(again)
    aside.rename(root / "movies/1")
    again.scan()
    assert (version_of(again), again.problem(1)) == (1, "")
    want(again, lambda page: desired.labelled(page, "x", 9))
    again.scan()
    assert again.states()[9] == "refused"
    want(again, lambda page: desired.unlabelled(page, "x"))
    again.scan()
    assert again.states() == {1: "available"}


def test_state_that_is_damaged_changes_nothing_in_a_service_that_runs(two: Running, write: Write) -> None:
    want(two, lambda page: desired.pinned(page, (1,)))
    good = two.state.path.read_bytes()
    two.state.path.write_bytes(good[:-9])
    write(version=3)
    two.scan()
    assert version_of(two) == 1
    assert two.value("rowcast_state_readable") == 0
    assert "damaged" in two.watcher.state_problem
    two.state.path.write_bytes(good)
    two.scan()
    assert (version_of(two), two.value("rowcast_state_readable")) == (1, 1)


def test_service_that_starts_with_a_damaged_state_loads_nothing_until_it_is_mended(
    write: Write, run: Run, root: Path
) -> None:
    write()
    (root / ".rowcast-state.json").write_bytes(b"{")
    service = run()
    assert "damaged" in service.engine.problem
    with pytest.raises(NotReady, match="damaged"):
        version_of(service)
    (root / ".rowcast-state.json").unlink()
    service.scan()
    assert version_of(service) == 1
    assert service.engine.ready


def test_damaged_version_is_left_at_once_for_the_one_that_is_kept(two: Running, root: Path) -> None:
    flip(next((root / "movies/2/tables/users").iterdir()))
    two.watcher.check()
    assert version_of(two) == 1
    assert two.states() == {2: "refused", 1: "available"}
    two.scan()
    assert version_of(two) == 1


def test_what_is_kept_makes_room_for_a_version_that_would_not_fit(
    two: Running, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = 1
    monkeypatch.setattr(
        "service.generations.loader.free_bytes", lambda: 0 if two.states().get(tight) == "kept" else 1 << 40
    )
    write(version=3)
    two.scan()
    assert two.states() == {3: "available", 2: "kept"}


def test_load_that_does_not_fit_is_refused_with_the_figures(
    two: Running, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.generations.loader.free_bytes", lambda: 0)
    write(version=3, size=4000)
    two.scan()
    assert two.states() == {3: "refused", 2: "available", 1: "kept"}, "what is kept would not make room enough"
    assert "MiB of memory beside its tables, 0 MiB are free" in two.problem(3)


def test_rollback_does_not_wait_for_a_load_that_is_under_way(
    two: Running, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, go_on = threading.Event(), threading.Event()
    warm_up = two.engine.warm_up

    def slow(generation: Generation, pause: Pauses) -> None:
        loading.set()
        assert go_on.wait(20)
        warm_up(generation, pause)

    object.__setattr__(two.loader, "warm_up", slow)
    write(version=3)
    look = threading.Thread(target=two.scan)
    look.start()
    assert loading.wait(20)
    want(two, lambda page: desired.rolled_back(page, 1, 3))
    assert version_of(two) == 1
    go_on.set()
    look.join(20)
    assert version_of(two) == 1
    assert 3 not in two.states(), "it was loaded, but no longer wanted"


def test_wishes_that_change_under_load_fail_no_call(two: Running, root: Path) -> None:
    done, versions = threading.Event(), list[int]()
    request = Retrieval(Target(), vectors=np.ones(8, np.float32))

    async def ask_on() -> None:
        while not done.is_set():
            versions.append((await two.engine.retrieve(request, CALL)).version)

    async def callers() -> None:
        await asyncio.gather(*(ask_on() for _ in range(8)))

    def change() -> None:
        try:
            for number in range(60):
                want(two, desired.unpinned if number % 2 else lambda page: desired.rolled_back(page, 1, 2))
            shutil.rmtree(root / "movies" / "1")
            two.scan()
        finally:
            done.set()

    changes = threading.Thread(target=change)
    changes.start()
    asyncio.run(callers())
    changes.join()
    assert set(versions) == {1, 2}
    assert two.states() == {2: "available"}
