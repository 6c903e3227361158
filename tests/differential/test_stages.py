"""A cheap ranking tower before an expensive one, as a user writes both: what is served, and what
the export measures, equal what the model itself gives.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from rowcast_client import Client

from export.cli import documents
from export.errors import ExportError, UsageError, VerificationFailed
from export.explain.drawing import draw_bundle, draw_prepared
from export.graphs.loading import load_tensorflow
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.model_code.factories import load_factory
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.e2e.process import WAIT_S
from tests.units.export.movies_job import changed, export, toml
from tests.units.export.traced_models import IDS, MODELS, recipe, save_checkpoint
from tests.units.service.running import RunningService

pytestmark = pytest.mark.slow

tf = load_tensorflow()

FILMS = 60
FILM_IDS = np.arange(FILMS)
POPULARITY = ((7 * FILM_IDS) % 13 / 13).astype(np.float32)
KEEP = 12
USERS = 12
Scores = NDArray[np.float32]


def context_of(user: int) -> dict[str, Any]:
    return {"user": user, "hour": 3 * user % 24, "patience": user / 4}


class Project:
    """A recipe with its data, and the model that was saved.

    Attributes:
      recipe: The path of the recipe.
      content: What is in it.
    """

    def __init__(self, directory: Path) -> None:
        """Writes the recipe, the corpus and examples, and saves the model."""
        number = {"dtype": "float32"}
        job = recipe(
            "staged.py:build_films",
            {"user": IDS, "hour": IDS, "film": IDS, "patience": number, "popularity": number},
            {
                "query": {"role": "query", "call": "query", "inputs": ["user"]},
                "candidate": {"role": "candidate", "call": "candidate", "inputs": ["film"]},
                "deep": {"role": "ranking", "call": "rank", "inputs": ["user", "hour", "film"]},
                "quick": {
                    "role": "ranking",
                    "call": "quick",
                    "inputs": ["user", "film", "patience", "popularity"],
                },
            },
            {
                "model": "films",
                "code": {"factory": "staged.py:build_films", "table_threshold": 1},
                "features": {"film": {"role": "candidate"}, "popularity": {"role": "candidate"}},
                "corpora": {
                    "films": {
                        "file": "films.csv",
                        "id": "film",
                        "features": {"film": "film", "popularity": "popularity"},
                    }
                },
                "indexes": {
                    "films": {
                        "corpus": "films",
                        "query_tower": "query",
                        "candidate_tower": "candidate",
                    }
                },
                "stages": {
                    "deep": {
                        "tower": "quick",
                        "keep": KEEP,
                        "recall": {"k": 5, "pool_size": 40, "value": 0.01},
                    }
                },
                "verify": {"examples": "examples.jsonl", "count": USERS},
            },
        )
        self.model = load_factory(job.code.factory, MODELS)()
        prefix = save_checkpoint(job, directory)
        tf.train.Checkpoint(model=self.model).read(str(prefix)).expect_partial()
        content = job.model_dump(mode="json", exclude_unset=True)
        self.content = changed(content, "checkpoint.path", str(prefix))
        self.recipe = self.write(directory, {})
        (directory / "staged.py").write_text((MODELS / "staged.py").read_text())
        with (directory / "films.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["film", "popularity"])
            rows.writerows(zip(FILM_IDS.tolist(), POPULARITY.tolist(), strict=True))
        examples = [
            {**context_of(user), "film": 5 * user, "popularity": 0.5} for user in range(USERS)
        ]
        lines = [json.dumps(example) for example in examples]
        (directory / "examples.jsonl").write_text("\n".join(lines))

    def write(self, directory: Path, changes: dict[str, Any]) -> Path:
        """Writes the recipe with other keys, beside the same data; returns its path."""
        content = self.content
        for key, value in changes.items():
            content = changed(content, key, value)
        path = directory / "recipe.toml"
        if changes:
            path = directory / "changed.toml"
        lines = [f"{json.dumps(key)} = {toml(value)}\n" for key, value in content.items()]
        path.write_text("".join(lines))
        return path

    def scores(self, tower: str, user: int, films: NDArray[np.int64]) -> Scores:
        """What the model itself gives films for a user."""
        features = {
            name: tf.constant([value] * films.size) for name, value in context_of(user).items()
        }
        features["film"] = tf.constant(films)
        features["popularity"] = tf.constant(POPULARITY[films])
        call = {"deep": self.model.rank, "quick": self.model.quick}[tower]
        scores: Scores = call(features).numpy()
        return scores

    def nearest(self, user: int, count: int) -> NDArray[np.int64]:
        users = self.model.users.embeddings
        films = self.model.films.embeddings
        products = films.numpy() @ users.numpy()[user]
        return np.argsort(-products)[:count]

    def staged(self, user: int, keep: int, k: int) -> NDArray[np.int64]:
        """What the stage and the ranking make of all films."""
        order = np.argsort(-self.scores("quick", user, FILM_IDS))[:keep]
        return order[np.argsort(-self.scores("deep", user, order))[:k]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("films"))


@pytest.fixture(scope="module")
def published(project: Project) -> Published:
    return export(project.recipe, 1)


@pytest.fixture(scope="module")
def clients(published: Published) -> Iterator[list[Client]]:
    assert isinstance(published.directory, Path)
    service = RunningService(published.directory.parents[1])
    clients = [
        Client(service.http, timeout_s=WAIT_S),
        Client(f"grpc://{service.grpc}", timeout_s=WAIT_S),
    ]
    yield clients
    for client in clients:
        client.close()
    service.close()


def test_recommendations_are_those_of_both_towers_of_the_model(
    project: Project, clients: list[Client]
) -> None:
    contexts = [context_of(user) for user in range(USERS)]
    for client in clients:
        for options, keep in (({}, KEEP), ({"keep": 20}, 20), ({"skip_stage": True}, FILMS)):
            response = client.recommend(contexts, k=5, pool_size=FILMS, **options)
            for user, neighbors in enumerate(response):
                expected = project.staged(user, keep, 5)
                assert neighbors.ids.tolist() == expected.tolist()
                scores = project.scores("deep", user, expected)
                np.testing.assert_allclose(neighbors.scores, scores, 1e-5, 1e-5)


def test_manifest_and_reports_have_the_recall_of_the_stage(
    project: Project, published: Published, clients: list[Client]
) -> None:
    shares = []
    for user in range(USERS):
        pool = project.nearest(user, 40)
        best = pool[np.argsort(-project.scores("deep", user, pool))[:5]]
        stage = pool[np.argsort(-project.scores("quick", user, pool))[:KEEP]]
        shares.append(np.isin(best, stage).mean())
    recall = published.manifest.stages["deep"].recall["films"]
    assert 0 < recall.low < recall.value < 1
    assert recall.value == pytest.approx(np.mean(shares))
    assert (recall.k, recall.contexts, recall.pool_size) == (5, USERS, 40)
    assert recall.representative
    assert documents.published(published)["stages"]["deep"]["tower"] == "quick"
    text = f"recall@5 {recall.value:.4f}"
    drawn = draw_bundle(published.manifest, "bundle")
    assert f"stage quick: keeps 12 candidates of each context for deep, {text}" in "".join(
        drawn.stores
    )
    (details,) = clients[0].model("films").stages
    assert (details.before, details.tower, details.keep) == ("deep", "quick", KEEP)
    assert details.recall_k == 5
    assert details.recall == pytest.approx(recall.value)


def test_stage_that_drops_too_much_is_not_published(project: Project) -> None:
    changes = {"stages.deep.recall.value": 0.999, "stages.deep.keep": 6}
    path = project.write(project.recipe.parent, changes)
    with pytest.raises(VerificationFailed, match=r"the stage keeps 0\.\d+, stages\.deep\.rec"):
        export(path, 2)


def test_stage_that_keeps_the_whole_corpus_is_not_measured(project: Project) -> None:
    changes = {"stages.deep.recall": {}, "stages.deep.keep": 60, "verify.examples": None}
    path = project.write(project.recipe.parent, changes)
    settings = ExportSettings(load=False)
    prepared = bundle_job.prepare(read_recipe(path), path.parent, settings, 3)
    stores = draw_prepared(prepared, "recipe").stores
    assert "stage quick: keeps 60 candidates of each context for deep" in stores
    published = bundle_job.run(prepared, settings, Progress(Console(quiet=True)))
    assert published.manifest.stages["deep"].recall == {}
    assert "keeps 60 candidates, and the corpus has 60" in "".join(published.notes)
    assert "what stages drop of the best candidates (quick): no index has pools" in "".join(
        published.manifest.verification.unverified
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages.deep.tower": "quik"}, "stages.deep.tower names 'quik' (did you mean 'quick'?)"),
        ({"stages.deep.tower": "deep"}, "stages.deep.tower names 'deep' itself; a cheaper rank"),
        ({"stages": {"late": {"tower": "quick", "keep": 9}}}, "stages.late names 'late'; the reci"),
        (
            {"stages.quick": {"tower": "deep", "keep": 9}},
            "stages.deep.tower names 'quick', and stages.quick comes before it; a tower without",
        ),
        ({"verify.examples": None}, "stages.deep.recall.value is a limit, which needs real contex"),
        (
            {"corpora.films.features.popularity": None},
            "stages.deep.tower: tower 'quick' reads inputs of candidates that a corpus lacks; "
            "corpora.films.features has no column for popularity; add it",
        ),
        (
            {"corpora.films.features.film": None, "indexes": {}},
            "stages.deep: no corpus has all inputs that tower 'deep' reads of candidates; corpora.",
        ),
    ],
)
def test_stage_that_does_not_fit_stops_the_export(
    changes: dict[str, Any], message: str, project: Project
) -> None:
    path = project.write(project.recipe.parent, changes)
    with pytest.raises(ExportError) as problem:
        bundle_job.prepare(read_recipe(path), path.parent, ExportSettings(), 9)
    assert message in str(problem.value)
    assert isinstance(problem.value, UsageError)
