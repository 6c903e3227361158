"""Large rankings in pieces: the same answers, whoever computes them, and nobody left waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.features import Column
from service.engine import dividing
from service.engine.occupancy import Occupancy
from service.engine.pieces import Pieces
from service.engine.requests import Call, Embedding, Ranked, Ranking, Retrieval, Target
from service.errors import Internal, InvalidArgument
from tests.service.engine.test_crossed_inputs import CROSSED
from tests.service.running import CALL, WORKERS, Running, WaitingTower, column
from tests.service.small_bundle import GENRE_NAMES, SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]
CORES = 4
HEADS = ("watch", "rating")


class SeenTower(WaitingTower):
    """Runs another network; keeps how many examples it was run on, and in which threads."""

    def __init__(self, network: Any) -> None:
        super().__init__(network)
        self.let_go.set()
        self.sizes: list[int] = []
        self.threads: set[int] = set()
        self.burn_s = 0.0
        self.fails_when: Callable[[int], bool] = lambda _: False

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        size = len(next(iter(inputs.values())))
        self.sizes.append(size)
        self.threads.add(threading.get_ident())
        if self.fails_when(size):
            raise RuntimeError("secret of the tower")
        time.sleep(self.burn_s)
        return super().run(inputs)


def seen(service: Running, part: int = 0) -> SeenTower:
    current = service.switch.current("movies")
    assert current is not None
    tower = SeenTower(current.towers["ranking"].parts[part].network)
    service.with_network("ranking", tower, part=part)
    return tower


def rank(service: Running, request: Ranking, call: Call = CALL) -> Ranked:
    return service.ask(service.engine.rank(request, call))


def of_pieces(run: Run, cores: int = CORES) -> Running:
    return run(occupancy=Occupancy(cores), piece_us=1000)


def takes(service: Running, seconds: float, *heads: str) -> None:
    """Has the service believe that a candidate takes so long."""
    current = service.switch.current("movies")
    assert current is not None
    work = current.towers["ranking"].work(frozenset(["score", *heads]))
    dividing.pace_of(work).least_s = seconds


def divided(run: Run, cores: int = CORES) -> tuple[Running, SeenTower]:
    """Returns a service that believes that eight candidates make a piece, or twice as many, since they are few."""
    service = of_pieces(run, cores)
    tower = seen(service)
    takes(service, 1e-3 / 8)
    return service, tower


@st.composite
def requests(draw: st.DrawFn, ids: NDArray[Any]) -> Ranking:
    m = draw(st.integers(64, 150))
    cuts = sorted(draw(st.lists(st.integers(0, m), max_size=4)))
    n = len(cuts) + 1
    context: dict[str, Any] = {"user": column(*draw(st.lists(st.integers(0, 60), min_size=n, max_size=n)))}
    if draw(st.booleans()):
        recent = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
        ends = np.cumsum([0, *recent])
        context["recent"] = column(*ids[: ends[-1]].tolist(), offsets=ends.tolist())
    candidates: dict[str, Any] = {}
    if draw(st.booleans()):
        candidates["year"] = column(*(place / m for place in range(m)))
    if draw(st.booleans()):
        candidates["movie"] = column(*(int(ids[place % 9]) for place in range(m)))
    if draw(st.booleans()):
        each = [draw(st.integers(0, 2)) for _ in range(5)]
        ends = np.cumsum([0, *(each[place % 5] for place in range(m))])
        names = [(*GENRE_NAMES, "opera")[place % 6] for place in range(ends[-1])]
        candidates["genres"] = column(*names, offsets=ends.tolist())
    asked = ids[np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(ids), m)]
    heads, k = draw(st.sampled_from([(), HEADS])), draw(st.sampled_from([0, 1, 40]))
    return Ranking(Target("movies"), context, asked, candidates, np.array([0, *cuts, m]), heads, k)


@pytest.mark.parametrize(
    "options",
    [{}, {"parts": True}, {"parts": True, "features": {"genres": CROSSED}}],
    ids=["whole", "parts", "crossed"],
)
def test_answers_have_the_same_bits_however_candidates_are_divided(
    write: Write, run: Run, options: dict[str, Any]
) -> None:
    small = write(**options)
    whole, parted = run(piece_us=0), of_pieces(run)
    tower = seen(parted, 1 if options else 0)

    @settings(max_examples=25)
    @given(requests(small.ids), st.sampled_from([1, 4, 8, 12]))
    def same(request: Ranking, candidates: int) -> None:
        takes(parted, 1e-3 / candidates, *request.heads)
        tower.sizes.clear()
        found, expected = rank(parted, request), rank(whole, request)
        assert len(tower.sizes) > 1
        assert found.scores.tobytes() == expected.scores.tobytes()
        assert found.positions.tolist() == expected.positions.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()
        for head in request.heads:
            assert found.heads[head].tobytes() == expected.heads[head].tobytes()

    same()
    counted = ("rowcast_unknown_ids_total", "rowcast_ids_total", "rowcast_candidates_total", "rowcast_examples_total")
    assert parted.value(counted[0], model="movies", feature="user") > 0
    for name in counted[:2]:
        for feature in ("movie", "genres", "user"):
            told = [service.value(name, model="movies", feature=feature) for service in (whole, parted)]
            assert told[0] == told[1], (name, feature)
    for name in counted[2:]:
        assert len({service.value(name, call="rank") for service in (whole, parted)}) == 1


def asked(small: SmallBundle, m: int = 96, **candidates: Any) -> Ranking:
    return Ranking(Target(), {"user": column(3)}, small.ids[np.arange(m) % 40], candidates)


def test_threads_that_are_idle_take_pieces(write: Write, run: Run) -> None:
    small = write()
    service, tower = divided(run)
    tower.burn_s = 0.005
    rank(service, asked(small))
    assert tower.sizes == [16] * 6
    assert 1 < len(tower.threads) <= CORES


@pytest.mark.parametrize("busy", [1, CORES])
def test_nothing_is_divided_where_no_core_is_idle(write: Write, run: Run, busy: int) -> None:
    small = write()
    service = run(occupancy=Occupancy(busy, None, lambda: busy - 1), piece_us=1000)
    tower = seen(service)
    takes(service, 1e-3 / 8)
    rank(service, asked(small))
    assert tower.sizes == [96]


def test_phases_of_pieces_are_within_the_time_of_the_call_and_its_kind_takes_all_that_was_computed(
    write: Write, run: Run
) -> None:
    small = write()
    service, tower = divided(run)
    tower.burn_s = 0.01
    request, call = asked(small), Call("timed")
    began = time.perf_counter()
    rank(service, request, call)
    elapsed_s = time.perf_counter() - began
    assert 0 < sum(call.phases.values()) < elapsed_s
    current = service.switch.current("movies")
    assert current is not None
    assert service.engine._scheduler._paces.usual_s(current, request.kind) >= 6 * tower.burn_s


def test_what_is_wrong_with_a_call_is_told_as_of_one_piece(write: Write, run: Run) -> None:
    small = write()
    (service, tower), whole = divided(run), run(piece_us=0)
    request = asked(small, movie=column(*small.ids[:30].tolist() * 3, *small.ids[:5].tolist(), 5))
    told = []
    for each in (service, whole):
        with pytest.raises(InvalidArgument) as refused:
            rank(each, request)
        told.append(str(refused.value))
    assert told[0] == told[1]
    assert "id 5 is not in table 'movies'" in told[0]
    tower.fails_when = lambda size: size < 96
    assert rank(service, asked(small)).scores.tobytes() == rank(whole, asked(small)).scores.tobytes()
    tower.fails_when = lambda _: True
    with pytest.raises(Internal):
        rank(service, asked(small))
    assert service.engine.in_flight == 0


def test_pieces_of_a_call_that_nobody_waits_for_are_left(write: Write, run: Run) -> None:
    small = write()
    service, tower = divided(run)

    async def leave() -> None:
        tower.let_go.clear()
        task = asyncio.create_task(service.engine.rank(asked(small), CALL))
        assert await asyncio.to_thread(tower.entered.wait, 20)
        task.cancel()
        tower.let_go.set()
        assert await service.engine.drained(20)

    asyncio.run(leave())
    assert len(tower.sizes) <= CORES
    assert service.engine.in_flight == 0


def test_call_that_comes_meanwhile_is_computed_after_a_piece(write: Write, run: Run) -> None:
    small = write()
    service, tower = divided(run, WORKERS)
    tower.burn_s = 0.005

    async def both() -> list[str]:
        ended: list[str] = []

        async def one(name: str, m: int) -> None:
            await service.engine.rank(asked(small, m), CALL)
            ended.append(name)

        large = asyncio.create_task(one("large", 800))
        assert await asyncio.to_thread(tower.entered.wait, 20)
        await one("small", 8)
        assert not large.done()
        await large
        return ended

    assert asyncio.run(both()) == ["small", "large"]


def test_embeddings_have_the_same_bits_in_pieces(write: Write, run: Run) -> None:
    small = write()
    parted, whole = of_pieces(run), run(piece_us=0)
    current = parted.switch.current("movies")
    assert current is not None
    work = current.towers["query"].result_work
    users, ends = np.arange(100) % 60, np.arange(101) // 3
    history = Column(small.ids[np.arange(33) % 40], ends)
    request = Embedding(Target(), "query", {"user": column(*users.tolist()), "history": history})
    dividing.pace_of(work).least_s = 1e-3 / 8
    found, expected = (each.ask(each.engine.embed(request, CALL)).vectors for each in (parted, whole))
    assert found.tobytes() == expected.tobytes()
    told = {"model": "movies", "tower": "query", "part": "whole"}
    assert parted.value("rowcast_part_examples_total", **told) == 100
    assert dividing.pace_of(work).rows == 16  # it was divided


def test_exact_search_by_several_threads_finds_the_same(
    write: Write, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(size=400)
    monkeypatch.setattr("runtime.exact._BLOCK_BYTES", 4 * 8 * 16)
    request = Retrieval(Target(), 30, {"user": column(3, 9, 1)}, exact=True)
    found, expected = (each.ask(each.engine.retrieve(request, CALL)) for each in (of_pieces(run), run(piece_us=0)))
    assert found.neighbors.ids.tobytes() == expected.neighbors.ids.tobytes()
    assert found.neighbors.scores.tobytes() == expected.neighbors.scores.tobytes()


def test_each_piece_is_computed_once_and_the_first_failure_ends_the_others() -> None:
    class Crew:
        """Three threads that help."""

        piece_s = 1.0

        def __init__(self) -> None:
            self.threads: list[threading.Thread] = []

        def idle(self) -> bool:
            return len(self.threads) < 3

        def call(self, pieces: Pieces) -> None:
            while self.idle():
                self.threads.append(threading.Thread(target=pieces.help, args=(lambda: True,)))
                self.threads[-1].start()

    computed: list[int] = []

    def compute(at: int) -> None:
        time.sleep(0.001)
        computed.append(at)
        if at == fails:
            raise ValueError(f"piece {at}")

    for fails in (-1, 0, 20):
        computed.clear()
        crew = Crew()
        if fails < 0:
            Pieces(40, compute).run(crew)
            assert sorted(computed) == list(range(40))
        else:
            with pytest.raises(ValueError, match=f"piece {fails}"):
                Pieces(4000, compute).run(crew)
            assert fails <= max(computed) < 3999
        before = len(computed)
        for thread in crew.threads:
            thread.join()
        assert len(computed) == before  # nobody computes once `run` has returned
