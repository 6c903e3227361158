"""The commands of docs/how-to/object-stores.md, run as the page writes them: the MovieLens example
from an S3 server.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle.storage import catalog
from tests.e2e.forked_programs import printed_by_export

pytest.importorskip("boto3", reason="needs moto[server]")
from tests.e2e.s3_server import PROGRAMS, environment, s3_client, s3_server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/object-stores.md"
INSPECT = "rowcast-export inspect s3://training/run-7"
RUN = (
    "rowcast-export run recipe.toml --checkpoint s3://training/run-7 --root s3://models/bundles "
    "--scratch /mnt/nvme"
)
PULL = "rowcast-serve pull s3://models/bundles /srv/bundles --model movielens --keep 3"
VERIFY = "rowcast-export verify /srv/bundles/movielens/1 --recipe recipe.toml"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the example's recipe, model and a checkpoint."""
    from examples.movielens import data, generated, train
    from examples.movielens.settings import Settings

    project = tmp_path_factory.mktemp("project")
    example = project / "examples/movielens"
    example.mkdir(parents=True)
    for name in ("recipe.toml", "model.py"):
        shutil.copy(ROOT / "examples/movielens" / name, example)
    shape = generated.Shape(users=60, movies=600, ratings=6_000, clusters=6, sequels=0.5)
    settings = Settings(epochs=1, rank_epochs=1, negatives=64)
    train.train(data.make(11, shape), project / "build/demo", settings)
    return project


@pytest.fixture(scope="module")
def store(trained: Path) -> Iterator[int]:
    """Port of an S3 server with the checkpoint in it."""
    with s3_server() as port, s3_client(port) as client:
        for bucket in ("training", "models"):
            client.create_bucket(Bucket=bucket)
        for file in (trained / "build/demo/checkpoint").iterdir():
            client.upload_file(str(file), "training", f"run-7/{file.name}")
        yield port


def run(command: str, project: Path, port: int, directory: Path) -> str:
    """Runs a command of the page; its absolute paths lie in `directory`."""
    program, *arguments = shlex.split(command.replace(" /", f" {directory}/"))
    folder = project / "examples/movielens"
    variables = environment(f"http://127.0.0.1:{port}")
    if program == "rowcast-export":
        return printed_by_export(arguments, folder, variables)
    done = subprocess.run(
        [PROGRAMS / program, *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_page_has_the_commands() -> None:
    page = PAGE.read_text()
    for command in (INSPECT, RUN, PULL):
        assert f"\n    {command}\n" in page
    assert f"`{VERIFY}`" in page.replace("\n", " ")


@pytest.mark.nightly
@pytest.mark.slow
def test_movielens_from_a_store_is_published_pulled_and_verified(
    trained: Path, store: int, tmp_path: Path
) -> None:
    assert "movies" in run(INSPECT, trained, store, tmp_path)
    assert "published s3://models/bundles/movielens/1" in run(RUN, trained, store, tmp_path)

    run(PULL, trained, store, tmp_path)
    pulled = tmp_path / "srv/bundles/movielens/1"
    assert "movie_numbers" in catalog.read_manifest(pulled).tables
    run(VERIFY, trained, store, tmp_path)
