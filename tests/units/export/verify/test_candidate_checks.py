"""Candidates of a bundle that differ from their files, and vectors that the model does not give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format import paths
from bundle.format.manifest import (
    Corpus,
    DenseFeature,
    EmbeddedFeature,
    Feature,
    Index,
    Manifest,
    Tower,
    TowerInput,
    TowerOutput,
)
from export.corpora.candidates import write_store
from export.corpora.files import locate_corpus
from export.corpora.reading import CorpusReader
from export.errors import VerificationFailed
from export.recipe.schema import CorpusSection, ExportJob
from export.verify.candidate_checks import SAMPLE, check_candidates
from export.verify.examples import Examples
from tests.id_graphs import hash_ids
from tests.units.export.corpora.test_files import WRITERS

FEATURES: dict[str, Feature] = {
    "item": EmbeddedFeature(kind="single", table="t", role="candidate"),
    "tags": EmbeddedFeature(
        kind="bag", table="t", role="candidate", combiner="sum", ids=hash_ids(10)
    ),
    "studio": EmbeddedFeature(
        kind="single", table="t", role="candidate", ids=hash_ids(10), default="none"
    ),
    "year": DenseFeature(kind="dense", role="candidate", default=1.0),
    "place": DenseFeature(kind="dense", role="candidate", shape=(2,)),
}
PART = CorpusSection(
    file="items.*",
    id="id",
    features={name: "id" if name == "item" else name for name in FEATURES},
    attributes=("title", "tags", "year"),
    filters=("studio",),
)
Cells = dict[str, Any]
ROWS: list[Cells] = [
    {
        "id": [50 - row],
        "tags": [[], ["a"], ["b", "c"]][row % 3],
        # Row 6 has the separator of lists in a single value.
        "studio": {3: [], 6: ["s|2"]}.get(row, [f"s{row % 4}"]),
        "year": [] if row == 2 else [1990.1 + row],
        "place": [row + 0.25, -1.0],
        "title": [f"Zoë {row}"],
    }
    for row in range(12)
]


def part_of(kind: Any, **fields: Any) -> Any:
    """Returns a part of a manifest, without what the checks do not read."""
    return kind.model_construct(**fields)


def nothing(_tower: str, _examples: Examples) -> NDArray[Any]:
    raise AssertionError("no index is compared")


class Held:
    """A corpus of a bundle, and the recipe that names its files."""

    def __init__(
        self, folder: Path, kind: str, rows: list[Cells], section: str = "corpora"
    ) -> None:
        self.folder = folder
        self.kind = kind
        self.section = section
        self.part = PART
        if section == "contexts":
            self.part = PART.model_copy(update={"filters": ()})
        self.root = folder / "bundle"
        self.replace(rows)
        file = paths.corpus_store("items")
        reader = CorpusReader(self.files(), "items", self.part.stored, FEATURES)
        self.corpus: Corpus = write_store(self.root, file, reader)

    def replace(self, rows: list[Cells]) -> None:
        """Writes the file of the corpus."""
        (self.folder / f"items.{self.kind}").unlink(missing_ok=True)
        WRITERS[self.kind](rows, self.folder / f"items.{self.kind}")

    def files(self) -> Any:
        return locate_corpus(self.folder, "items", self.part)

    def check(self, **more: Any) -> None:
        original = more.pop("original", nothing)
        limits = more.pop("limits", {})
        page = part_of(Manifest, corpora={}, contexts={}, indexes={}, towers={}, features=FEATURES)
        update = {self.section: {"items": self.corpus}, **more}
        check_candidates(
            self.root, page.model_copy(update=update), self.job(limits), self.folder, original
        )

    def job(self, limits: dict[str, float]) -> ExportJob:
        return ExportJob.model_validate(
            {
                "model": "m",
                "checkpoint": {"path": "ckpt"},
                "code": {"factory": "model.py:build"},
                "inputs": {},
                "towers": {"item": {"role": "candidate", "max_abs_error": limits}},
                "output": {"root": "bundles"},
                self.section: {"items": self.part},
            }
        )

    def failure(self, **more: Any) -> VerificationFailed:
        with pytest.raises(VerificationFailed) as failure:
            self.check(**more)
        return failure.value


@pytest.mark.parametrize("section", ["corpora", "contexts"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "tfrecord"])
def test_candidates_as_in_their_file_are_in_order(tmp_path: Path, kind: str, section: str) -> None:
    Held(tmp_path, kind, ROWS, section).check()


@pytest.mark.parametrize("section", ["corpora", "contexts"])
@pytest.mark.parametrize(
    ("row", "changed", "problem"),
    [
        (11, {"title": ["x"]}, "row 12: attribute 'title' is 'Zoë 11' in the bundle, column 'ti"),
        (0, {"id": [99]}, "row 1: id is 50 in the bundle, column 'id' of items.csv says '99'"),
        (4, {"tags": ["b"]}, "row 5: feature 'tags' is ['a'] in the bundle, column 'tags' of ite"),
        (4, {"tags": []}, "row 5: feature 'tags' is ['a'] in the bundle"),
        (3, {"tags": ["a"]}, "row 4: feature 'tags' is [] in the bundle"),
        (5, {"tags": ["b", "x"]}, "row 6: feature 'tags' is ['b', 'c'] in the bundle"),
        (5, {"tags": ["b"]}, "row 6: feature 'tags' is ['b', 'c'] in the bundle"),
        (3, {"studio": ["s3"]}, "row 4: feature 'studio' is [] in the bundle, column 'studio' of"),
        (4, {"studio": []}, "row 5: feature 'studio' is ['s0'] in the bundle"),
        (2, {"year": [2.5]}, "row 3: feature 'year' is [] in the bundle"),
        (4, {"year": [1994.11]}, "row 5: feature 'year' is [1994.0999755859375] in the bundle"),
        (4, {"place": [4.25, 1.0]}, "row 5: feature 'place' is [4.25, -1.0] in the bundle"),
    ],
)
def test_candidate_that_differs_from_its_file_is_named(
    tmp_path: Path, section: str, row: int, changed: Cells, problem: str
) -> None:
    corpus = Held(tmp_path, "csv", ROWS, section)
    corpus.replace(
        [values | changed if position == row else values for position, values in enumerate(ROWS)]
    )
    failure = corpus.failure()
    assert str(failure).startswith(f"corpus 'items', {problem}")
    assert failure.steps == (corpus.corpus.file,)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"title": ["x"]}, "attribute 'title' is 'Zoë 11' in the bundle"),
        ({"id": [99]}, "id is 39 in the bundle, column 'id' of items.parquet says 99"),
        ({"tags": ["b", "x"]}, "feature 'tags' is ['b', 'c'] in the bundle"),
        ({"studio": []}, "feature 'studio' is ['s3'] in the bundle, column 'studio' of"),
        ({"year": []}, "feature 'year' is [2001.0999755859375] in the bundle"),
    ],
)
def test_candidate_that_differs_from_a_parquet_file_is_named(
    tmp_path: Path, changed: Cells, problem: str
) -> None:
    corpus = Held(tmp_path, "parquet", ROWS)
    corpus.replace([*ROWS[:-1], ROWS[-1] | changed])
    assert str(corpus.failure()).startswith(f"corpus 'items', row 12: {problem}")


def test_attribute_that_is_missing_in_the_bundle_is_named(tmp_path: Path) -> None:
    corpus = Held(tmp_path, "csv", ROWS)
    part = corpus.part.model_copy(update={"features": {}, "filters": ()})
    corpus.part = part
    rows = [
        values | {"year": [7]} if position == 2 else values for position, values in enumerate(ROWS)
    ]
    corpus.replace(rows)
    assert str(corpus.failure()) == (
        "corpus 'items', row 3: attribute 'year' is None in the bundle, column 'year' of items.csv "
        "says '7'"
    )


def test_file_with_fewer_candidates_than_the_bundle_is_rejected(tmp_path: Path) -> None:
    corpus = Held(tmp_path, "csv", ROWS)
    corpus.replace(ROWS[:-1])
    failure = corpus.failure()
    assert str(failure) == ("corpus 'items': its files do not hold the 12 candidates of the bundle")
    assert failure.steps == (corpus.corpus.file,)


def test_candidate_that_differs_from_one_of_several_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "items.b.csv").write_text("")
    WRITERS["csv"](ROWS[5:], tmp_path / "items.b.csv")
    corpus = Held(tmp_path, "csv", ROWS[:5])
    WRITERS["csv"]([*ROWS[5:-1], ROWS[-1] | {"title": ["x"]}], tmp_path / "items.b.csv")
    assert "column 'title' of the 2 files says 'x'" in str(corpus.failure())


def test_large_corpus_is_compared_from_its_first_to_its_last_candidate(tmp_path: Path) -> None:
    rows = [ROWS[1] | {"id": [row]} for row in range(3 * SAMPLE)]
    corpus = Held(tmp_path, "csv", rows)
    corpus.check()
    for position, description in ((0, "row 1:"), (-1, f"row {3 * SAMPLE}:")):
        changed = list(rows)
        changed[position] = rows[position] | {"title": ["x"]}
        corpus.replace(changed)
        assert description in str(corpus.failure())


VECTORS = np.arange(24, dtype=np.float32).reshape(12, 2) - 8


def with_index(corpus: Held, vectors: NDArray[np.float32]) -> dict[str, Any]:
    """Writes the vectors of an index; returns what a manifest says of it and of its towers."""
    file = paths.index_vectors("nearest")
    (corpus.root / file).parent.mkdir(parents=True, exist_ok=True)
    vectors.astype("<f4").tofile(corpus.root / file)
    read = TowerInput(name="place", feature="place", dtype="float32", shape=(None, 2))
    output = TowerOutput(name="vector", dtype="float32", shape=(None, 2))
    tower = part_of(Tower, inputs=(read,), outputs=(output,), result="vector")
    index = part_of(
        Index, corpus="items", candidate_tower="item", dim=2, vectors=file, directory="x"
    )
    return {"indexes": {"nearest": index}, "towers": {"item": tower}}


def original(tower: str, examples: Examples) -> NDArray[Any]:
    """Gives the vectors of the candidates by the feature that the tower reads."""
    assert (tower, list(examples.columns), examples.n) == ("item", ["place"], 12)
    rows = examples.columns["place"].values.reshape(-1, 2)[:, 0]
    vectors: NDArray[Any] = VECTORS[(rows - 0.25).astype(int)].astype(np.float64)
    return vectors


@pytest.mark.parametrize(
    ("difference", "limits", "wrong"),
    [
        (0.9e-5, {}, False),
        (1.5e-4, {}, True),  # 1e-5, and 1e-5 of 13
        (0.4, {"f32": 0.5}, False),
        (0.5, {"f32": 0.5}, False),
        (0.6, {"f32": 0.5}, True),
        (np.nan, {"f32": 0.5}, True),
    ],
)
def test_vectors_of_an_index_are_compared_with_those_of_the_original_model(
    tmp_path: Path, difference: float, limits: dict[str, float], wrong: bool
) -> None:
    corpus = Held(tmp_path, "csv", ROWS)
    vectors = VECTORS.copy()
    vectors[[3, 10], 1] += np.float32(difference)
    named = with_index(corpus, vectors)
    if not wrong:
        corpus.check(original=original, limits=limits, **named)
        return
    failure = corpus.failure(original=original, limits=limits, **named)
    assert str(failure) == (
        "index 'nearest': the vector of candidate 47 (row 4 of corpus 'items') is not what the "
        "original model gives; 2 of 12 compared are wrong"
    )
    assert failure.steps == (paths.index_vectors("nearest"),)
