"""One corpus with a whole index and indexes in partitions, of each engine: exported, verified,
served, and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rowcast_client import Client

from bundle.format import paths
from bundle.storage.catalog import read_manifest
from runtime.engines import default_engine, open_engine
from tests.e2e.process import Process
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import (
    changed,
    example_requests,
    recipe_of,
    write_examples,
    write_project,
)
from tests.units.export.traced_models import movies_recipe, save_checkpoint

pytestmark = pytest.mark.slow

INDEX = {"corpus": "movies", "query_tower": "query", "candidate_tower": "candidate"}
TREE = {"kind": "tree_ah", "parameters": {"num_leaves": 3}}
INDEXES = {
    "whole": INDEX,
    "thirds": INDEX | {"partitions": 3},
    "halves": INDEX | TREE | {"partitions": 2},
    "faiss": INDEX | TREE | {"partitions": 2, "engine": "faiss"},
}
ENGINE = default_engine()
QUERIES = [
    {key: example_request[key] for key in ("user_id", "history", "hour")}
    for example_request in example_requests(12)
]


@pytest.fixture(scope="module")
def forked() -> ForkedRuns:
    return ForkedRuns()


@pytest.fixture(scope="module")
def exported(forked: ForkedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("partitions")
    recipe = changed(recipe_of(save_checkpoint(movies_recipe(), base)), "indexes", INDEXES)
    project = write_project(base, changed(recipe, "verify.examples", "examples.jsonl"))
    write_examples(base, example_requests())
    assert forked.run(["plan", str(project)], base / "plan") == 0
    assert forked.run(["run", str(project), "--version", "1"], base / "output") == 0, (
        base / "output"
    ).read_text()
    return base / "bundles/movies/1"


@pytest.fixture(scope="module")
def client(exported: Path) -> Iterator[Client]:
    process = Process(exported.parents[1])
    process.event("ready")
    with Client(f"http://127.0.0.1:{process.ports['http']}") as client:
        yield client
    process.kill()


def test_plan_run_explain_and_verify_show_the_partitions(
    exported: Path, forked: ForkedRuns
) -> None:
    base = exported.parents[2]
    message = {name: " ".join((base / name).read_text().split()) for name in ("plan", "output")}
    assert (
        "index thirds: query finds movies; each million of candidates, 3 partitions:"
        in message["plan"]
    )
    assert "index thirds, brute_force, 3 partitions" in message["output"]
    assert forked.run(["explain", str(exported)], base / "explain") == 0
    recipe = str(base / "recipe.toml")
    assert forked.run(["verify", str(exported), "--recipe", recipe, "--json"], base / "verify") == 0
    assert "index halves: query finds movies, 2 partitions, recall@10" in " ".join(
        (base / "explain").read_text().split()
    )
    assert '"index halves, 2 partitions"' in (base / "verify").read_text()
    manifest = read_manifest(exported)
    assert {name: index.partitions for name, index in manifest.indexes.items()} == {
        "whole": 1,
        "thirds": 3,
        "halves": 2,
        "faiss": 2,
    }
    engines = {name: index.engine for name, index in manifest.indexes.items()}
    assert engines == dict.fromkeys(INDEXES, ENGINE) | {"faiss": "faiss"}
    files = {str(file.path) for file in manifest.files}
    directory = paths.index_directory("thirds", ENGINE)
    config = open_engine(ENGINE).config
    assert f"{directory}/partition-00002-of-00003/{config}" in files
    assert not any(path.startswith(f"{directory}/") and "/partition-" not in path for path in files)


@pytest.mark.parametrize("name", ["thirds", "halves", "faiss"])
def test_partitions_find_the_same_as_the_whole_index(client: Client, name: str) -> None:
    hits = 0
    for query in QUERIES:
        whole, exact = (
            client.retrieve(query, k=10, index=each, exact=each != "whole")
            for each in ("whole", name)
        )
        assert exact[0].ids.tolist() == whole[0].ids.tolist()
        assert exact[0].scores.tobytes() == whole[0].scores.tobytes()
        actual = client.retrieve(query, k=10, index=name)[0].ids.tolist()
        hits += len({*actual} & {*whole[0].ids.tolist()})
    assert hits / (10 * len(QUERIES)) >= 0.95
