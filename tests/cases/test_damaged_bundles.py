"""A published bundle that differs from its checkpoint, its model, its files or itself fails
`rowcast-export verify`: a table of damages, each with the check that notices it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import ipc, parquet

from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.storage.catalog import read_manifest
from export.checkpoint.reader import open_checkpoint
from export.errors import UsageError, VerificationFailed
from export.recipe.schema import read_recipe
from export.verify.checks import OF_BUNDLE, OF_MODEL, STAGED
from export.verify.published import Verified, verify_against_recipe, verify_bundle
from runtime.engines import default_engine
from runtime.partitions import partition_rows
from tests.bundles.indexes import write_index
from tests.bundles.search_costs import COSTS
from tests.hostile.manifest_edits import Json, reseal, rewrite, setting
from tests.units.export.damaged_indexes import (
    VECTORS,
    build_of_reversed_vectors,
    reverse_codes,
    reverse_vectors,
    swap_vectors,
)
from tests.units.export.movies_job import MOVIES, Recipe, changed, edit, export, write_project
from tests.units.export.small_job import save_small_recipe, with_tree

ROWS = paths.table_segment("users", 0, 1)
STORE = paths.corpus_store("movies")
USERS = paths.context_store("people")
TOWER = "towers/query/compiled-f32.tflite"
KERNEL = "model/kernel/.ATTRIBUTES/VARIABLE_VALUE"
PEOPLE: list[dict[str, Any]] = [
    {"name": "ann", "number": 0, "groups": ["red", "blue"], "age": 30, "weight": 0.5},
    {"name": "bob", "number": 1, "groups": [], "age": 41, "weight": 1.5},
    {"name": "cid", "number": 2, "groups": ["red|blue"], "age": None, "weight": 2.5},
]
INDEX = paths.index_directory("movies", default_engine())
TREE = paths.index_directory("tree", default_engine())
TREE_STEPS = (f"built {TREE}", TREE, paths.index_codes("tree"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """The small job with two indexes over the same vectors, and with stored contexts."""
    recipe = save_small_recipe(tmp_path_factory.mktemp("small"))
    people = {
        "file": "people.parquet",
        "id": "name",
        "features": {"user_id": "number"},
        "attributes": ["groups", "age", "weight"],
    }
    recipe = changed(recipe, "contexts", {"people": people})
    return changed(recipe, "indexes.tree", with_tree(recipe)["indexes"]["movies"])


@pytest.fixture(scope="module")
def published(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe beside its published bundle."""
    project = write_project(tmp_path_factory.mktemp("project"), recipe)
    write_people(project, PEOPLE)
    export(project, version=1)
    return project


@pytest.fixture
def project(published: Path, tmp_path: Path) -> Path:
    """A copy of both, which a test may damage."""
    return Path(shutil.copytree(published.parent, tmp_path / "project")) / published.name


def bundle_of(project: Path) -> Path:
    return project.parent / "bundles/small/1"


def write_people(project: Path, rows: list[dict[str, Any]]) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), project.with_name("people.parquet"))


def verified(project: Path, *, full: bool = False) -> Verified:
    return verify_against_recipe(
        bundle_of(project), read_recipe(project), project.parent, full=full
    )


@pytest.mark.parametrize("row", [0, MOVIES - 1])
def test_candidates_of_a_large_corpus_are_compared_from_the_first_to_the_last(
    project: Path, monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    monkeypatch.setattr("export.verify.candidate_checks.SAMPLE", 5)
    edit(project, "movies.csv", f'Movie ""{row}""', f'Other ""{row}""')
    with pytest.raises(VerificationFailed, match=f"row {row + 1}:"):
        verified(project)


def test_undamaged_bundle_passes_every_check(published: Path) -> None:
    bundle = bundle_of(published)
    manifest = read_manifest(bundle)
    findings = verified(published).findings
    files = [path for path in bundle.rglob("*") if path.is_file()]
    assert findings.files == len(files) - 1  # without the manifest
    assert findings.unlisted == ()
    assert {check.rows_compared for check in findings.tables.values()} == {10, 40}
    assert findings.examples == 24
    assert {index.vectors for index in manifest.indexes.values()} == {VECTORS}
    recall = {name: index.recall.value for name, index in manifest.indexes.items()}
    assert findings.recall == recall
    opened = {"table users", "tower query, litert f32", "corpus movies, filter genres"}
    assert {*opened, "corpus movies", "contexts people", "index tree"} <= {*findings.opened}


@dataclass(frozen=True)
class Damage:
    """One way in which a bundle is wrong.

    Attributes:
      check: The check that notices it.
      apply: Damages the bundle, or changes the files beside its recipe.
      words: Occur in the message.
      steps: What the next run of the job would do again.
      sealed: Whether the damaged files get checksums that fit them.
    """

    check: str
    apply: Callable[[Path], object]
    words: tuple[str, ...]
    steps: tuple[str, ...] | None = None
    sealed: bool = True


def in_bundle(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """Returns the damage of a project that changes its bundle."""
    return lambda project: change(bundle_of(project))


def flip(file: str, bundle: Path) -> None:
    data = bytearray((bundle / file).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / file).write_bytes(data)


def add(file: str, bundle: Path) -> None:
    (bundle / file).touch()


def add_files_of_other_programs(bundle: Path) -> None:
    add(".DS_Store", bundle)
    add("_OK", bundle)


def change_row(bundle: Path) -> None:
    """Changes a value of a table, and gives its segment the digests that fit."""
    flip(ROWS, bundle)
    digest = crc32c((bundle / ROWS).read_bytes())
    rewrite(bundle, setting("tables.users.segments.0.crc32c", digest))
    rewrite(bundle, setting("tables.users.segments.0.blocks", [digest]))


def change_weight(project: Path) -> None:
    """Flips a bit of the query tower's kernel."""
    checkpoint = open_checkpoint(Path(read_recipe(project).checkpoint.path))
    kernel = checkpoint.read_all(KERNEL)
    bundle = bundle_of(project)
    data = bytearray((bundle / TOWER).read_bytes())
    offset = max(data.find(stored.tobytes()) for stored in (kernel[0], kernel[:, 0]))
    assert offset > 0
    data[offset + 3] ^= 0x02
    (bundle / TOWER).write_bytes(data)


def rewrite_store(file: str, change: Callable[[pa.Table], pa.Table], bundle: Path) -> None:
    with ipc.open_file(bundle / file) as stored:
        table = change(stored.read_all().combine_chunks())
    (bundle / file).unlink()
    with ipc.new_file(bundle / file, table.schema) as out:
        out.write_table(table.combine_chunks())


def repeat_first(table: pa.Table) -> pa.Table:
    """Writes the first entry once more, in place of the last one."""
    return pa.concat_tables([table.slice(0, table.num_rows - 1), table.slice(0, 1)])


def roll(column: str, table: pa.Table) -> pa.Table:
    """Gives every entry the next one's value."""
    values = table.column(column).combine_chunks()
    moved = pa.concat_arrays([values.slice(1), values.slice(0, 1)])
    return table.set_column(table.schema.get_field_index(column), column, moved)


def resize_vectors(rows: int, bundle: Path) -> None:
    vectors = np.fromfile(bundle / VECTORS, "<f4").reshape(MOVIES, -1)
    np.resize(vectors, (rows, vectors.shape[1])).tofile(bundle / VECTORS)


def swap_candidates(bundle: Path) -> None:
    """Gives two candidates each other's vector, and builds the index of exact search of these."""
    swap_vectors(bundle)
    vectors = np.fromfile(bundle / VECTORS, "<f4").reshape(MOVIES, -1)
    write_index(vectors, "dot_product", "brute_force", {}, bundle / INDEX)


def write_partitions(bundle: Path, swapped: bool) -> None:
    """Replaces the tree by one in two partitions, of which the last may be of vectors in another
    order.
    """
    index = read_manifest(bundle).indexes["tree"]
    vectors = np.fromfile(bundle / index.vectors, "<f4").reshape(MOVIES, -1)
    for directory in (index.directory, paths.index_codes("tree")):
        shutil.rmtree(bundle / directory)
    parameters = {"num_leaves": 4, "leaves_to_search": 1, "dimensions_per_block": 2, "reorder": 1}
    directories = paths.index_partitions(index.directory, 2)
    for directory, rows in zip(directories, partition_rows(MOVIES, 2), strict=True):
        part: NDArray[np.float32] = vectors[rows.first : rows.end]
        if swapped and directory == directories[-1]:
            part = part[::-1].copy()
        write_index(part, index.distance, "tree_ah", parameters, bundle / directory)

    def describe(page: Json) -> None:
        page["indexes"]["tree"] |= {
            "partitions": 2,
            "parameters": parameters,
            "costs": COSTS.model_dump(),
            "codes": None,
        }
        page["files"] = [file for file in page["files"] if "indexes/tree" not in file["path"]]
        written = [path for path in (bundle / index.directory).rglob("*") if path.is_file()]
        page["files"] += [{"path": path.relative_to(bundle).as_posix()} for path in written]

    rewrite(bundle, describe)


def edit_vector(value: float, bundle: Path) -> None:
    vectors = np.fromfile(bundle / VECTORS, "<f4").reshape(MOVIES, -1)
    vectors[5, 0] = value
    vectors.tofile(bundle / VECTORS)


def drop_last_line(project: Path) -> None:
    file = project.with_name("movies.csv")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def person(row: int, column: str, value: Any) -> Callable[[Path], object]:
    """Returns the change of a cell in the file of contexts."""
    rows = [dict(cells) for cells in PEOPLE]
    rows[row][column] = value
    return lambda project: write_people(project, rows)


def promise(values: Json, bundle: Path) -> None:
    """States another recall of the tree, which searches one leaf of twenty."""
    rewrite(bundle, setting("indexes.tree.recall", lambda recall: recall | values))


def say(file: str, before: str, after: str) -> Callable[[Path], object]:
    """Returns the change of a file beside the recipe."""
    return lambda project: edit(project, file, before, after)


def manifest(path: str, value: object) -> Callable[[Path], object]:
    return in_bundle(lambda bundle: rewrite(bundle, setting(path, value)))


def store(file: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    return in_bundle(partial(rewrite_store, file, change))


ORDER = ("in another order",)
DAMAGES = {
    "a bit of a table": Damage("files", in_bundle(partial(flip, ROWS)), (ROWS,), sealed=False),
    "a file that TensorFlow would read": Damage(
        "files",
        in_bundle(partial(add, "towers/query/saved_model/saved_model.pbtxt")),
        ("saved_model.pbtxt", "is not in the manifest"),
    ),
    "a file that ScaNN would read": Damage(
        "files", in_bundle(partial(add, f"{INDEX}/tokens.npy")), ("tokens.npy",)
    ),
    "a tower that is no program": Damage(
        "parts",
        in_bundle(lambda bundle: (bundle / TOWER).write_bytes(b"none")),
        (TOWER.rpartition("/")[2],),
    ),
    "a context that comes twice": Damage("parts", store(USERS, repeat_first), ("comes twice",)),
    "a vector too many": Damage(
        "parts", in_bundle(partial(resize_vectors, MOVIES + 1)), ("41 vectors", "40")
    ),
    "vectors in another order than their exact index": Damage(
        "parts",
        in_bundle(reverse_vectors),
        (INDEX, "40 of 40", *ORDER),
        (f"built {INDEX}", INDEX),
    ),
    "a tree of vectors in another order": Damage(
        "parts", in_bundle(partial(build_of_reversed_vectors, tree="tree")), ORDER, TREE_STEPS
    ),
    "a partition of vectors in another order": Damage(
        "parts",
        in_bundle(partial(write_partitions, swapped=True)),
        ("partition-00001-of-00002", *ORDER),
    ),
    "codes in another order": Damage(
        "parts", in_bundle(partial(reverse_codes, tree="tree")), ORDER, TREE_STEPS
    ),
    "a bit of a row": Damage("rows", in_bundle(change_row), ("'users'", "row 5", "column")),
    "rows of another variable": Damage(
        "rows", manifest("tables.users.source.key", "gone"), ("'users'", "no variable 'gone'")
    ),
    "rows of a variable of another shape": Damage(
        "rows",
        manifest("tables.users.source.key", KERNEL),
        ("'users'", "[10, 256]", "[256, 4]"),
    ),
    "rows in another order": Damage(
        "rows",
        manifest("tables.users.source", lambda it: it | {"layout": "mod", "starts": [0, 5]}),
        ("'users'", "row "),
    ),
    "another weight": Damage("towers", change_weight, ("'query'", "LiteRT f32")),
    "another feature of a tower": Damage(
        "towers",
        manifest("towers.query.inputs.0.feature", "movie_id"),
        ("'query'", "SavedModel f32"),
        (),
    ),
    "ids of other candidates": Damage(
        "candidates", store(STORE, partial(roll, "id")), ("row 1", "107", "'100'"), (STORE,)
    ),
    "features of other candidates": Damage(
        "candidates",
        store(STORE, partial(roll, "feature:year")),
        ("'year'", "1981.0"),
        (STORE,),
    ),
    "attributes of other candidates": Damage(
        "candidates", store(STORE, partial(roll, "attribute:title")), ("'title'",), (STORE,)
    ),
    "vectors of other candidates": Damage(
        "candidates", in_bundle(swap_candidates), ("121", "2 of 40"), (VECTORS,)
    ),
    "a vector that is no number": Damage(
        "parts",
        in_bundle(partial(edit_vector, np.nan)),
        ("vector 5", "NaN"),
    ),
    "a file with fewer candidates": Damage(
        "candidates",
        drop_last_line,
        ("the 40 candidates",),
        (STORE,),
    ),
    "features of other contexts": Damage(
        "candidates", person(1, "number", 5), ("row 2", "'user_id'", "5"), (USERS,)
    ),
    "a list of other values": Damage(
        "candidates", person(0, "groups", ["red", "x"]), ("row 1", "'x'"), (USERS,)
    ),
    "another number": Damage(
        "candidates", person(2, "weight", 2.6), ("row 3", "'weight'", "2.6"), (USERS,)
    ),
    "a number where there was none": Damage(
        "candidates", person(2, "age", 7), ("row 3", "'age'", "None"), (USERS,)
    ),
    "a cell without the number that it had": Damage(
        "candidates", say("movies.csv", ',"1981"', ',""'), ("row 2", "'year'", "1981"), (STORE,)
    ),
    "a recall below the target": Damage(
        "recall",
        in_bundle(partial(promise, {"value": 1.0, "target": 0.95, "low": 0.0})),
        ("'tree'", "recall@"),
    ),
    "a recall below the measured range": Damage(
        "recall",
        in_bundle(partial(promise, {"value": 1.0, "target": 0.0, "low": 0.95})),
        ("'tree'", "recall@"),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_noticed_by_its_check(project: Path, name: str) -> None:
    damage = DAMAGES[name]
    damage.apply(project)
    if damage.sealed:
        reseal(bundle_of(project))
    with pytest.raises(VerificationFailed) as failure:
        verified(project)
    for words in damage.words:
        assert words in str(failure.value)
    if damage.steps is not None:
        assert failure.value.steps == damage.steps


def test_every_check_has_a_damage_that_it_notices() -> None:
    assert {damage.check for damage in DAMAGES.values()} == {*OF_BUNDLE, *OF_MODEL, *STAGED}


HARMLESS: dict[str, Callable[[Path], None]] = {
    # The target was a wish, which the index did not reach when it was exported either.
    "a target that was never reached": partial(promise, {"value": 0.0, "target": 0.95, "low": 0.0}),
    "an index in partitions": partial(write_partitions, swapped=False),
    "files of other programs": add_files_of_other_programs,
}


@pytest.mark.parametrize("name", HARMLESS)
def test_bundle_that_differs_in_no_value_passes(project: Path, name: str) -> None:
    HARMLESS[name](bundle_of(project))
    reseal(bundle_of(project))
    findings = verify_bundle(bundle_of(project)).findings
    assert findings.unlisted == ((".DS_Store", "_OK") if "files" in name else ())
    if "target" in name:
        verified(project)


def test_what_is_no_bundle_of_the_recipe_is_a_usage_error(
    project: Path, recipe: Recipe, tmp_path: Path
) -> None:
    films = write_project(tmp_path / "films", changed(recipe, "model", "films"))
    with pytest.raises(UsageError, match="films"):
        verify_against_recipe(bundle_of(project), read_recipe(films), films.parent)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(UsageError, match="is a SavedModel"):
        verify_bundle(tmp_path)
    with pytest.raises(UsageError, match="manifest"):
        verify_bundle(project.parent)
    with pytest.raises(VerificationFailed, match="too long"):
        verify_bundle(tmp_path / ("n" * 300))  # of any user: rights do not hold back root
