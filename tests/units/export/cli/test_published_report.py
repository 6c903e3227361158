from __future__ import annotations

import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bundle.format.indexes import DepthPoint, Recall
from bundle.format.manifest import PaddingCheck, TableCheck
from bundle.storage.catalog import read_manifest
from export.cli.published_report import TABLES_SHOWN, published_json, published_report
from export.jobs.staged import Published
from tests.units.export.movies_job import Recipe, write_project

GOLDEN = Path(__file__).parents[3] / "differential/bundle/root/movies/1"
PROGRAM = Path(sys.executable).with_name("rowcast-export")


@pytest.mark.slow
def test_run_as_a_program_prints_json_alone_and_no_native_chatter(
    recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, recipe)
    model = project.parent / "two_towers.py"
    model.write_text(model.read_text() + '\nprint("model code says")\n')
    done = subprocess.run(
        [PROGRAM, "run", project, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert page["bundle"] == str(tmp_path / "bundles/movies/1")
    assert page["recall"]["movies"]["value"] == 1.0
    assert page["recall_of_cold_users"]["movies"]["value"] == 1.0
    assert page["max_abs_error"]["ranking"]["litert f32"]["score"] < 1e-4
    assert [note for note in page["notes"] if "recall on invented queries" not in note] == []
    lines = done.stderr.splitlines()
    steps = [line for line in lines if re.search(r"^  \w.* [0-9.]+ s( |$)", line)]
    assert {line for line in lines if line not in steps} == {"model code says"}
    assert [line.split("  ")[1] for line in steps] == list(page["seconds"])


def test_run_prints_what_was_verified(undisturbed: Path) -> None:
    output = (undisturbed.parents[2] / "output").read_text()
    assert "the service rejects such users" not in " ".join(output.split())
    for report in (
        "50 of 50 rows equal",
        "original model, 24",
        "largest difference",
        "recall@10 1.0000",
        "queries of cold users",
        "published",
    ):
        assert report in " ".join(output.replace("│", " ").split()), report


def published(notes: tuple[str, ...] = (), **changes: Any) -> Published:
    """Returns the published golden bundle, with changes to its manifest."""
    changed = read_manifest(GOLDEN).model_copy(update=changes)
    return Published(Path("bundles/movies/3"), changed, notes)


def lines_of(report: Published) -> list[str]:
    """Returns the lines that a terminal shows, without the frames of the table."""
    text = StringIO()
    Console(file=text, width=200).print(published_report(report))
    return [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]


def test_report_shows_what_was_published_and_proved() -> None:
    lines = lines_of(published(("seen",)))
    assert [line for line in lines if line and set(line) != {"─"}] == [
        "movies version 1",
        "checked against result",
        "table cities the checkpoint 16 of 16 rows right as int8",
        *(line for line in lines if line.startswith("table cities its float32 values")),
        "table genres the checkpoint 6 of 6 rows equal bit for bit",
        "table movies the checkpoint 41 of 41 rows right as int8",
        *(line for line in lines if line.startswith("table movies its float32 values")),
        "table users the checkpoint 50 of 50 rows equal bit for bit",
        *(
            f"tower {tower}, {form} f32 the original model, 1 examples largest difference 0"
            for tower in ("query", "candidate", "ranking")
            for form in ("saved_model", "litert")
        ),
        "index movies, brute_force exact search, 100 queries recall@10 1.0000 (at least 0.9000); "
        "target 0.95",
        "note: seen",
        "a request with an unknown id fails in movie: state what such an id reads as "
        "features.movie.unknown, or nothing if that is right",
        "published bundles/movies/3 (2.3 KiB of tables, 1.6 KiB of it linked)",
    ]
    assert len([line for line in lines if "float32 values difference: largest" in line]) == 2


def test_report_tells_how_tables_were_compared() -> None:
    page = read_manifest(GOLDEN)
    padding = PaddingCheck(rows=7)
    tables = {
        "users": TableCheck(rows_compared=40, rows=50, decoder="h5py 3"),
        "cities": TableCheck(rows_compared=0, rows=16),
        "genres": TableCheck(rows_compared=6, rows=6, stated_layout="expected", padding=padding),
        "movies": TableCheck(rows_compared=41, rows=41, stated_layout="accepted"),
    }
    effects = {"query": {"vector": 0.25, "other": 0.5}}
    update = {"tables": tables, "table_effect": effects}
    lines = lines_of(published(verification=page.verification.model_copy(update=update)))
    for line in (
        "table users the checkpoint 40 of 50 rows equal bit for bit; placement checked, decoding "
        "trusted to h5py 3",
        "table cities the checkpoint linked, not verified: --full sums its rows",
        "table genres the checkpoint 6 of 6 rows equal bit for bit, by its stated layout, which "
        "recorded outputs agree with; compared with 7 padding rows",
        "table movies the checkpoint 41 of 41 rows right as int8, if its stated layout is right: "
        "not verified",
        "tower query itself on the checkpoint's rows largest difference 0.5",
    ):
        assert line in lines


def test_report_ends_with_what_was_not_verified() -> None:
    page = read_manifest(GOLDEN)
    update = {"unverified": ("ids: no outputs", "rows outside of the samples (users)")}
    lines = lines_of(published(verification=page.verification.model_copy(update=update)))
    assert lines[-1] == "not verified: ids: no outputs; rows outside of the samples (users)"
    assert lines[-2].startswith("published bundles/movies/3")


@pytest.mark.parametrize(("count", "more"), [(TABLES_SHOWN, 0), (TABLES_SHOWN + 2, 2)])
def test_report_lists_some_of_many_tables(count: int, more: int) -> None:
    page = read_manifest(GOLDEN)
    names = [f"t{number}" for number in range(count)]
    checks = dict.fromkeys(names, TableCheck(rows_compared=6, rows=6))
    lines = lines_of(
        published(
            tables=dict.fromkeys(names, page.tables["genres"]),
            verification=page.verification.model_copy(update={"tables": checks}),
        )
    )
    listed = [line.split()[1] for line in lines if line.startswith("table t")]
    assert listed == names[:TABLES_SHOWN]
    last = f"{more} more tables the checkpoint listed with --json"
    assert (last in lines) == bool(more)
    assert lines[-1] == f"published bundles/movies/3 ({96 * count / 1024:.1f} KiB of tables)"


RECALL = Recall(k=10, value=0.97, low=0.95, queries=50, chosen_on=50, target=0.95)
MEASURED = {
    "kind": "tree_ah",
    "partitions": 3,
    "recall": RECALL,
    "depths": (DepthPoint(k=100, leaves_to_search=1, reorder=1, recall=0.96),),
    "recall_of_tables": RECALL.model_copy(update={"value": 0.9}),
    "recall_of_cold_users": RECALL.model_copy(update={"value": 0.8, "queries": 7}),
}


def test_report_tells_every_recall_of_an_index() -> None:
    index = read_manifest(GOLDEN).indexes["movies"]
    lines = lines_of(published(indexes={"movies": index.model_copy(update=MEASURED)}))
    what = "index movies, tree_ah, 3 partitions exact search"
    assert [line for line in lines if line.startswith("index")] == [
        f"{what}, 50 of 100 queries recall@10 0.9700 (at least 0.9500); target 0.95",
        f"{what}, 100 queries recall@100 0.9600",
        f"{what} on the checkpoint's rows recall@10 0.9000 (at least 0.9500)",
        f"{what}, 7 queries of cold users recall@10 0.8000 (at least 0.9500)",
    ]
    invented = index.recall.model_copy(update={"representative": False})
    lines = lines_of(published(indexes={"movies": index.model_copy(update={"recall": invented})}))
    (line,) = [line for line in lines if line.startswith("index")]
    assert "exact search, 100 synthetic queries: not representative recall@10" in line


def test_published_json_has_what_was_measured_alone() -> None:
    index = read_manifest(GOLDEN).indexes["movies"]
    page = published_json(published(("seen",)))
    assert (page["bundle"], page["table_bytes"], page["notes"]) == (
        "bundles/movies/3",
        1600 + 128 + 492 + 96,
        ["seen"],
    )
    assert set(page["table_errors"]) == {"cities", "movies"}
    assert (page["recall_of_tables"], page["recall_of_cold_users"]) == ({}, {})
    assert page["recall"]["movies"]["value"] == 1
    assert page["max_abs_error"]["query"] == {
        "saved_model f32": {"vector": 0.0},
        "litert f32": {"vector": 0.0},
    }
    assert "stated_layout" not in page["verification"]["tables"]["users"]
    measured = index.model_copy(update=MEASURED)
    page = published_json(published(indexes={"movies": measured}))
    assert page["recall_of_tables"]["movies"]["value"] == 0.9
    assert page["recall_of_cold_users"]["movies"]["value"] == 0.8
