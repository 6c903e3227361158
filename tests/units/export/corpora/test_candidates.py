"""Vectors and stores of candidates: the candidate tower's results in the order of the file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
from bundle.format.manifest import DenseFeature, EmbeddedFeature, Feature, Unknown
from bundle.tables.reader import TableReader
from export.corpora.candidates import CandidateTower, write_vectors
from export.errors import NotConvertible
from export.recipe.schema import CorpusSection
from tests.bundles.tables import write_table
from tests.units.export.corpora.written import write
from tests.units.runtime.tower_files import write_tower_files

ROWS = 900
TABLE = np.random.default_rng(5).normal(size=(ROWS, 8)).astype(np.float32)
PART = CorpusSection(
    file="movies.csv", id="id", features={"movie": "id", "year": "year"}, attributes=("year",)
)
TOWER = manifest.Tower(
    role="candidate",
    inputs=(
        manifest.TowerInput(name="movie", feature="movie", dtype="float32", shape=(None, 8)),
        manifest.TowerInput(name="year", feature="year", dtype="float32", shape=(None,)),
    ),
    outputs=(manifest.TowerOutput(name="vector", dtype="float32", shape=(None, 8)),),
    result="vector",
    forms=(
        manifest.TowerForm(
            kind="litert",
            precision="f32",
            path="candidate/compiled-f32.tflite",
            max_abs_error={"vector": 0},
        ),
    ),
)


def features(year_default: float | None = None) -> dict[str, Feature]:
    movie = {"kind": "single", "table": "movies", "role": "candidate"}
    return {
        "movie": EmbeddedFeature(**movie, unknown=Unknown(rule="refuse")),
        "year": DenseFeature(kind="dense", role="candidate", default=year_default),
    }


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("towers")
    write_tower_files(directory)
    return directory


class Stage:
    """A bundle whose corpus and table are written."""

    def __init__(self, base: Path, lines: list[str], **options: Any) -> None:
        (base / "movies.csv").write_text("id,year\n" + "".join(f"{line}\n" for line in lines))
        self.base = base
        part = PART.model_copy(update=options.pop("part", {}))
        self.features = features(**options)
        self.corpus = write(base, part, self.features, base)
        entry = write_table(base, "movies", TABLE, "float32", [])
        self.reader = FeatureReader(self.features, {"movies": TableReader(base, entry)}, {})

    def vectors(self, **options: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        tower = CandidateTower(TOWER, self.reader, {}, ())
        write_vectors(self.base, "nearest", "movies", self.corpus, tower, **options)
        return np.fromfile(self.base / paths.index_vectors("nearest"), "<f4").reshape(-1, 8)


@pytest.fixture
def base(towers: Path, tmp_path: Path) -> Path:
    shutil.copytree(towers / "candidate", tmp_path / "candidate")
    return tmp_path


def test_vectors_of_any_batch_size_are_those_of_the_tower_in_the_order_of_the_file(
    base: Path, towers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.random.default_rng(1).permutation(ROWS)[:500]
    stage = Stage(base, [f"{movie},{1950 + movie % 70}" for movie in ids])
    with np.load(towers / "weights.npz") as weights:
        joined = np.column_stack([TABLE[ids].astype(np.float64), np.log(1950.0 + ids % 70)])
        expected = joined @ weights["candidate"]
    for batch in (1, 64, 500):
        monkeypatch.setattr("export.corpora.candidates.BATCH_CANDIDATES", batch)
        np.testing.assert_allclose(stage.vectors(), expected, rtol=1e-5, atol=1e-5)


def test_feature_that_the_corpus_lacks_takes_its_default(base: Path, towers: Path) -> None:
    lacking = {"features": {"movie": "id"}}
    with np.load(towers / "weights.npz") as weights:
        expected = TABLE[[3, 4]] @ weights["candidate"][:8]
    stage = Stage(base, ["3,1", "4,1"], part=lacking, year_default=1.0)
    np.testing.assert_allclose(stage.vectors(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(NotConvertible, match=r"'year'.*corpora\.movies\.features"):
        Stage(base, ["3,1", "4,1"], part=lacking).vectors()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("700,0", "candidate 700 .row 101. holds NaN"),
        ("900,1999", "candidate 900 .row 101.: feature 'movie': id 900 is not in table"),
    ],
)
def test_candidate_without_a_vector_is_named(
    base: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: str
) -> None:
    monkeypatch.setattr("export.corpora.candidates.BATCH_CANDIDATES", 64)
    stage = Stage(base, [*(f"{movie},1999" for movie in range(100)), line, "800,1999"])
    with pytest.raises(NotConvertible, match=words):
        stage.vectors()


TITLE = "a title of a film " * 20
PROBE = """
import json, sys
from pathlib import Path
from tests.units.export.corpora.test_candidates import PART, features
from tests.units.export.corpora.written import write

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10

base, kind = Path(sys.argv[1]), sys.argv[2]
named = {"features": {"movie": "row", "year": "year"}, "attributes": ("title",)}
peaks = []
for name in ("few", "all"):
    part = PART.model_copy(update={"file": f"{name}.{kind}", **named})
    corpus = write(base, part, features(), base)
    peaks.append(peak())
print(json.dumps([(base / corpus.file).stat().st_size, *peaks]))
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_memory_does_not_grow_with_the_candidates(tmp_path: Path, kind: str) -> None:
    rows = 600_000
    for name, count in (("few", rows // 12), ("all", rows)):
        path = tmp_path / f"{name}.{kind}"
        if kind == "csv":
            lines = (f"{row},{row % ROWS},2000.0,{TITLE}\n" for row in range(count))
            path.write_text("id,row,year,title\n" + "".join(lines))
            continue
        ids = np.arange(count)
        columns = {"id": ids, "row": ids % ROWS, "year": np.full(count, 2000.0)}
        table = pa.table(columns | {"title": [TITLE] * count})
        parquet.write_table(table, path, row_group_size=count, use_dictionary=False)
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", PROBE, str(tmp_path), kind]
    done = subprocess.run(command, check=True, capture_output=True, cwd=root)
    store_bytes, peak_of_few, peak_of_all = json.loads(done.stdout.splitlines()[-1])
    assert store_bytes > len(TITLE) * rows
    assert peak_of_all - peak_of_few < store_bytes * 2 // 3
