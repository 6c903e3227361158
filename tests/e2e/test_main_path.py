"""The main path with real processes and sockets: a model is trained, exported, served and queried.

Every response is compared with what TensorFlow computes from the original model, restored from the
same checkpoint.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from rowcast_client import Client, NotReady, Retries, Unreachable

from bundle.format.manifest import dump
from bundle.storage.catalog import read_manifest
from export.model_code.factories import load_factory
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import workers_of
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import (
    MOVIE_IDS,
    MOVIES,
    changed,
    genres_of,
    recipe_of,
    title_of,
    write_project,
    year_of,
)
from tests.units.export.traced_models import MODELS, movies_recipe, save_checkpoint

Array = NDArray[Any]
Example = dict[str, Any]
EXAMPLES: list[Example] = [
    {"user_id": 3, "history": [MOVIE_IDS[2], MOVIE_IDS[5], MOVIE_IDS[2]], "hour": 7},
    {"user_id": 49, "history": [], "hour": 0},
    {"user_id": 0, "history": MOVIE_IDS[::3], "hour": 23},
]


class Original:
    """The uncut model of one checkpoint: for each example its query, and every candidate's vector
    and score.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        model = load_factory("two_towers.py:build_movies", MODELS)()
        tf.train.Checkpoint(model=model).restore(str(prefix)).expect_partial()
        self.tables: dict[str, Array] = {
            config.name: table.numpy() for config, table in model.embedding.embedding_tables.items()
        }
        self.queries = []
        self.scores = []
        for example in EXAMPLES:
            history = [MOVIE_IDS.index(movie) for movie in example["history"]]
            actual = model(
                {
                    "user_id": tf.fill([MOVIES], tf.constant(example["user_id"], tf.int64)),
                    "history": tf.ragged.constant([history] * MOVIES, tf.int64, ragged_rank=1),
                    "hour": tf.fill([MOVIES], tf.constant(example["hour"], tf.int64)),
                    "movie_id": tf.range(MOVIES, dtype=tf.int64),
                    "genres": tf.ragged.constant(
                        [genres_of(row) for row in range(MOVIES)], tf.int64
                    ),
                    "year": tf.constant([float(year_of(row)) for row in range(MOVIES)]),
                }
            )
            self.queries.append(actual["query"].numpy()[0])
            self.candidates = actual["candidate"].numpy()
            self.scores.append(actual["score"].numpy())

    def nearest(self, place: int, k: int) -> tuple[list[int], Array]:
        return best(self.candidates.astype(np.float64) @ self.queries[place].astype(np.float64), k)


def best(scores: Array, k: int) -> tuple[list[int], Array]:
    order = np.argsort(-scores, kind="stable")[:k]
    return [MOVIE_IDS[row] for row in order], scores[order]


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@dataclass(frozen=True)
class World:
    """Two versions of a model, exported aside, and the originals whose results they must return."""

    originals: Mapping[int, Original]
    bundles: Path
    forked: ForkedRuns


@pytest.fixture(scope="module")
def forked() -> ForkedRuns:
    return ForkedRuns()


@pytest.fixture(scope="module")
def world(forked: ForkedRuns, tmp_path_factory: pytest.TempPathFactory) -> World:
    base = tmp_path_factory.mktemp("world")
    originals = {}
    for version, seed in ((1, 5), (2, 6)):
        checkpoints = base / f"checkpoints-{version}"
        checkpoints.mkdir()
        prefix = save_checkpoint(movies_recipe(), checkpoints, seed)
        originals[version] = Original(prefix)
        project = write_project(base, recipe_of(prefix))
        assert forked.run(["run", str(project), "--version", str(version)], base / "output") == 0
    return World(originals, base / "bundles/movies", forked)


class Served(Process):
    """A running `rowcast-serve`, and the two ways to call it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.event("listening")

    def clients(self, **options: Any) -> dict[str, Client]:
        ports = self.ports
        return {
            "grpc": Client(f"grpc://127.0.0.1:{ports['grpc']}", **options),
            "http": Client(f"http://127.0.0.1:{ports['http']}", **options),
        }

    def get(self, path: str) -> int:
        return httpx.get(f"http://127.0.0.1:{self.ports['http']}{path}").status_code

    def maps(self) -> str:
        (worker,) = workers_of(self)
        return Path(f"/proc/{worker.pid}/maps").read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends it; whatever it wrote to stderr was JSON."""
        code = super().stop(number)
        self.event("stopped")
        assert self.others == []
        return code


Serve = Callable[[], Served]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/movies").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def serve(root: Path) -> Iterator[Serve]:
    started: list[Served] = []

    def start() -> Served:
        started.append(Served(root))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def drop(bundle: Path, root: Path, version: int) -> None:
    """Puts a bundle into a root as a copy over a network would: aside, then one rename."""
    copied = root / "movies" / f".copying-{version}"
    shutil.copytree(bundle, copied)
    copied.rename(root / "movies" / str(version))


def check_retrieved(client: Client, world: World, place: int, k: int = 5) -> int:
    """Requests neighbors and compares them with the original of the version in the response;
    returns that version.
    """
    response = client.retrieve(EXAMPLES[place], k=k, attributes=["title", "year"])
    ids, scores = world.originals[response.version].nearest(place, k)
    assert response[0].ids.tolist() == ids
    close(response[0].scores, scores)
    assert response[0].attributes["title"] == [title_of(MOVIE_IDS.index(movie)) for movie in ids]
    return response.version


def check_all(client: Client, world: World, version: int) -> None:
    """Sends every call, one request and several, and compares with the original model."""
    original = world.originals[version]
    for place, example in enumerate(EXAMPLES):
        assert check_retrieved(client, world, place) == version
        ranked = client.rank(example, MOVIE_IDS[::-1])
        assert ranked.version == version
        assert [candidate.id for candidate in ranked[0]] == MOVIE_IDS[::-1]
        close(ranked[0].scores, original.scores[place][::-1])
        recommended = client.recommend(example, k=4, pool_size=12, attributes=["title"])
        near = {MOVIE_IDS.index(movie) for movie in original.nearest(place, 12)[0]}
        kept = np.where([row in near for row in range(MOVIES)], original.scores[place], -np.inf)
        ids, scores = best(kept, 4)
        assert recommended[0].ids.tolist() == ids
        close(recommended[0].scores, scores)
        close(client.embed(example, tower="query").vectors[0], original.queries[place])
    several = client.retrieve(EXAMPLES, k=3, exclude_ids=MOVIE_IDS[:20])
    for place in range(len(EXAMPLES)):
        reached = original.candidates @ original.queries[place]
        reached[:20] = -np.inf
        assert several[place].ids.tolist() == best(reached, 3)[0]
    movie = {"movie_id": MOVIE_IDS[7], "genres": genres_of(7), "year": float(year_of(7))}
    close(client.embed(movie, tower="candidate").vectors[0], original.candidates[7])
    rows = client.lookup("history", [MOVIE_IDS[4], MOVIE_IDS[0]])
    assert np.array_equal(rows.vectors, original.tables["movies"][[4, 0]])


def test_exported_model_gives_the_results_of_the_original_over_both_transports(
    world: World, root: Path, serve: Serve
) -> None:
    drop(world.bundles / "1", root, 1)
    service = serve()
    service.event("version_available")
    for client in service.clients().values():
        with client:
            check_all(client, world, 1)
    assert "litert" in service.maps().lower()
    assert "libtensorflow" not in service.maps()
    assert service.stop() == 0


@pytest.mark.slow
def test_service_begins_empty_switches_without_a_failed_call_and_rejects_a_broken_version(
    world: World, root: Path, serve: Serve
) -> None:
    service = serve()
    assert (service.get("/livez"), service.get("/readyz")) == (200, 503)
    drop(world.bundles / "1", root, 1)
    service.event("version_available")
    assert service.get("/readyz") == 200
    finished = threading.Event()
    problems = []
    seen: list[list[int]] = []

    def retrieve_on(client: Client, versions: list[int]) -> None:
        try:
            with client:
                while not finished.is_set():
                    versions.append(check_retrieved(client, world, len(versions) % len(EXAMPLES)))
        except BaseException as problem:  # noqa: BLE001 - raised in the test's own thread
            problems.append(problem)

    callers = []
    for client in service.clients(retries=Retries(attempts_max=1)).values():
        seen.append([])
        callers.append(threading.Thread(target=retrieve_on, args=(client, seen[-1])))
        callers[-1].start()
    with service.clients()["grpc"] as client:
        assert check_retrieved(client, world, 0) == 1
        drop(world.bundles / "2", root, 2)
        service.event("version_available", version=2)
        assert check_retrieved(client, world, 0) == 2
        broken = root.parent / "broken"
        shutil.copytree(world.bundles / "2", broken)
        manifest = read_manifest(broken).model_copy(update={"version": 3})
        (broken / "manifest.json").write_bytes(dump(manifest))
        tower = bytearray((broken / "towers/query/compiled-f32.tflite").read_bytes())
        tower[len(tower) // 2] ^= 1
        (broken / "towers/query/compiled-f32.tflite").write_bytes(tower)
        drop(broken, root, 3)
        failed = service.event("version_failed", version=3)
        assert "towers/query/compiled-f32.tflite" in json.dumps(failed)
        states = {
            version.version: (version.state, version.problem)
            for version in client.models()[0].versions
        }
        assert states[2] == ("available", "")
        assert states[3][0] == "failed"
        assert "compiled-f32.tflite" in states[3][1]
        check_all(client, world, 2)
    until(lambda: all(versions[-1:] == [2] for versions in seen) or bool(problems))
    finished.set()
    for caller in callers:
        caller.join(WAIT_S)
    assert problems == []
    for versions in seen:
        assert versions == sorted(versions)  # never back
        assert set(versions) <= {1, 2}
    assert service.get("/readyz") == 200
    assert service.stop() == 0


def test_sigterm_completes_requests_in_flight_and_exits_0(
    world: World, root: Path, serve: Serve
) -> None:
    drop(world.bundles / "1", root, 1)
    # A request may still be on its way when the signal comes: then the test is repeated with
    # another process.
    assert any(ended_during_a_call(serve(), world) for _ in range(8))


def ended_during_a_call(service: Served, world: World) -> bool:
    """Ends a busy service; returns whether it completed a call that began before the signal."""
    service.event("version_available")
    contexts = [EXAMPLES[place % len(EXAMPLES)] for place in range(100)]
    responses: list[tuple[float, float]] = []
    clients = service.clients(retries=Retries(attempts_max=1)).values()
    busy = threading.Barrier(1 + len(clients))
    problems = []

    def retrieve_on(client: Client) -> None:
        with client:
            client.rank(contexts, [MOVIE_IDS] * len(contexts))
            busy.wait(WAIT_S)
            try:
                while True:
                    began = time.monotonic()
                    ranked = client.rank(contexts, [MOVIE_IDS] * len(contexts))
                    responses.append((began, time.monotonic()))
                    close(ranked[1].scores, world.originals[1].scores[1])
            except (NotReady, Unreachable) as problem:
                problems.append(problem)

    callers = [threading.Thread(target=retrieve_on, args=(client,)) for client in clients]
    for caller in callers:
        caller.start()
    busy.wait(WAIT_S)
    while len(responses) < 6:
        assert service.process.poll() is None
        time.sleep(0.0005)
    signalled = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    assert service.event("stopped")["drained"] is True
    assert service.process.wait(WAIT_S) == 0
    for caller in callers:
        caller.join(WAIT_S)
    # Each ended with the error that a draining service gives, nothing else.
    assert len(problems) == len(callers)
    return any(began < signalled < ended for began, ended in responses)


@pytest.mark.nightly
@pytest.mark.slow
def test_tower_without_a_compiled_form_is_served_where_tensorflow_is_installed(
    world: World, root: Path, serve: Serve, tmp_path: Path
) -> None:
    recipe = changed(recipe_of(world.originals[1].prefix), "towers.query.precisions", [])
    project = write_project(tmp_path / "project", changed(recipe, "output.root", str(root)))
    assert world.forked.run(["run", str(project)], tmp_path / "output") == 0, (
        tmp_path / "output"
    ).read_text()
    service = serve()
    service.event("version_available")
    with service.clients()["grpc"] as client:
        check_all(client, world, 1)
    assert "libtensorflow" in service.maps()
    assert service.stop() == 0
