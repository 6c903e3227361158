"""A job that is killed, interrupted or fails, and is begun again by the same command: it ends with
the bundle that an undisturbed run writes, and does again only what changed meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bundle.format import paths
from bundle.storage.staging import Staging
from runtime.engines import default_engine, open_engine
from tests.units.export.commands import Command
from tests.units.export.damaged_indexes import build_of_reversed_vectors, reverse_codes
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import (
    KILLED,
    journaled,
    noted_steps,
    rewritten,
)
from tests.units.export.movies_job import (
    Facts,
    Recipe,
    edit,
    facts,
    hidden,
    run_arguments,
    visible,
    write_project,
)
from tests.units.export.small_job import STEPS, TABLE_STEPS, with_tree

pytestmark = pytest.mark.slow

FORMS = TABLE_STEPS + 2
"""The steps when two of the four forms of towers are noted."""
VOCABULARY = "vocabularies/movies.arrow"
INDEX = paths.index_directory("movies", default_engine())
STAGED = {
    TABLE_STEPS: ["tables/users/rows-00000-of-00001.bin", "corpora/movies/store.arrow"],
    STEPS: [
        "towers/query/compiled-f32.tflite",
        f"{INDEX}/dataset.npy",  # of ScaNN
        f"{INDEX}/config.json",  # of faiss
    ],
}


def damage(project: Path) -> None:
    """Flips a bit in some of the staged files, and removes another."""
    staged = project.parent / "bundles/small/.staging-1"
    for files in STAGED.values():
        for file in files:
            if (staged / file).exists():
                content = bytearray((staged / file).read_bytes())
                content[len(content) // 2] ^= 1
                (staged / file).write_bytes(content)
    (staged / VOCABULARY).unlink()


def replace(file: str, before: str, after: str) -> Callable[[Path], None]:
    """Returns the edit of a file, whose size and times may stay."""
    return lambda project: edit(project, file, before, after)


@dataclass(frozen=True)
class Meanwhile:
    """What happens between the kill of the small job and the same command.

    Attributes:
      steps: The steps that were noted when it was killed.
      change: Changes the project, or the files that are staged.
      again: The files, or the folders, of which some are written again.
    """

    steps: int
    change: Callable[[Path], None]
    again: set[str] = field(default_factory=set)


CODE = replace("plain_module.py", '* inputs["year"]', '+ inputs["year"]')
KEYS = replace("movie_ids.txt", "100\n107\n", "107\n100\n")
TITLE = replace("movies.csv", 'Movie ""3""', 'Other ""3""')
COUNT = replace("recipe.toml", '"count" = 24', '"count" = 25')
RECALL = replace(
    "recipe.toml", '_tower" = "candidate"', '_tower" = "candidate", "recall" = {"k" = 3}'
)
FILTERS = replace("recipe.toml", '"filters" = ["genres", "year"]', '"filters" = ["year", "title"]')
EDITED = {
    "keys": Meanwhile(STEPS, KEYS, {"vocabularies", "indexes"}),
    "code": Meanwhile(STEPS, CODE, {"towers", "indexes"}),
    "early keys": Meanwhile(TABLE_STEPS, KEYS, {"vocabularies"}),
    "title": Meanwhile(STEPS, TITLE, {"corpora", "indexes"}),
    "count": Meanwhile(STEPS, COUNT),
    "recall": Meanwhile(STEPS, RECALL),
    "filters": Meanwhile(STEPS, FILTERS, {"corpora", "indexes"}),
}
MEANWHILE = EDITED | {
    "nothing": Meanwhile(FORMS, lambda _: None),
    "damage of tables": Meanwhile(TABLE_STEPS, damage, {"tables", "corpora", "vocabularies"}),
    "damage of everything": Meanwhile(
        STEPS, damage, {"tables", "corpora", "vocabularies", "towers", "indexes"}
    ),
    **{f"nothing after {steps}": Meanwhile(steps, lambda _: None) for steps in range(1, STEPS, 3)},
}
NOT_NIGHTLY = ("nothing", "damage of everything", "code")


@pytest.mark.parametrize(
    "name",
    [
        *NOT_NIGHTLY,
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in MEANWHILE
            if name not in NOT_NIGHTLY
        ),
    ],
)
def test_killed_job_resumes_to_the_bundle_of_an_undisturbed_one_and_does_again_what_changed(
    forked_command: Command,
    copy_killed: Callable[[int], Path],
    small_recipe: Recipe,
    small_facts: Facts,
    tmp_path: Path,
    name: str,
) -> None:
    """Contents decide what is done again, whatever the size and the times of a file."""
    meanwhile = MEANWHILE[name]
    project = copy_killed(meanwhile.steps)
    model = project.parent / "bundles/small"
    assert visible(model.parent) == []
    finished = journaled(model)
    meanwhile.change(project)
    done = forked_command(*run_arguments(project))
    assert done.code == 0, done.err
    kept = {file: seen for file, seen in finished.items() if (model / "1" / file).exists()}
    written = rewritten(kept, model / "1")
    config = open_engine(default_engine()).config  # which the chosen setting is written to
    again = {file.partition("/")[0] for file in written if not file.endswith(config)}
    assert hidden(model.parent) == []
    assert again == meanwhile.again
    if name not in EDITED:
        assert facts(model / "1") == small_facts
        return
    fresh = write_project(tmp_path / "fresh", small_recipe)
    meanwhile.change(fresh)
    done = forked_command(*run_arguments(fresh))
    assert done.code == 0, done.err
    assert facts(model / "1") == facts(fresh.parent / "bundles/small/1") != small_facts


def test_frozen_or_interrupted_job_keeps_its_version_until_it_goes_on(
    forked: ForkedRuns, forked_command: Command, small_recipe: Recipe, small_facts: Facts,
    command: Command, tmp_path: Path,
) -> None:  # fmt: skip
    project = write_project(tmp_path / "project", small_recipe)
    root = project.parent / "bundles"
    pid = forked.start(run_arguments(project), tmp_path / "first", stops=1)
    assert forked.status() == -signal.SIGSTOP
    second = command(*run_arguments(project))
    assert (second.code, "is being written by another run" in second.err) == (6, True)
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGCONT)
    assert forked.status() == 130
    assert "run the same command again" in (tmp_path / "first").read_text()
    assert visible(root) == []

    resumed = forked_command(*run_arguments(project))
    assert resumed.code == 0, resumed.err
    assert facts(root / "small/1") == small_facts


def test_staged_index_that_is_whole_and_wrong_is_made_again_after_the_check_that_finds_it(
    forked: ForkedRuns,
    forked_command: Command,
    small_recipe: Recipe,
    tmp_path: Path,
) -> None:
    """tests/cases/test_damaged_bundles.py has the steps that each wrong file has made again."""
    project = write_project(tmp_path / "project", with_tree(small_recipe))
    model = project.parent / "bundles/small"
    # One step more than of an index of exact search: the codes.
    assert forked.run(run_arguments(project), tmp_path / "output", noted=STEPS + 1) in KILLED
    build_of_reversed_vectors(model / ".staging-1")
    reverse_codes(model / ".staging-1")
    steps = noted_steps(model)
    with Staging(model.parent, model.name, 1) as stage:
        for step, entry in steps.items():
            if "indexes/" in step:
                files = [stage.digests(file.path)[0] for file in entry.files]
                stage.finish(step, entry.key, entry.payload, files)
    finished = journaled(model)

    failed = forked_command(*run_arguments(project))
    assert (failed.code, visible(model.parent)) == (5, [])
    assert "keeps what is finished" in failed.message
    done = forked_command(*run_arguments(project))
    assert done.code == 0, done.err
    assert {file.partition("/")[0] for file in rewritten(finished, model / "1")} == {"indexes"}
