"""A corpus several times larger than the memory it may take goes through every step, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.export.corpora.example_files import example, record
from tests.runtime.tower_files import write_tower_files

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
CANDIDATES = 960_000
STORE_BYTES = CANDIDATES * 40 * 8
VECTOR_BYTES = 256 * MIB
ALLOWED_BYTES = 96 * MIB

_PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from bundle.format import paths
from bundle.format.manifest import EmbeddedFeature
from export.corpora.candidates import write_candidates, write_vectors
from export.corpora.indexes import build_index
from export.recipe.schema import CorpusPart, IndexPart
from tests.export.corpora.example_files import example, record
from tests.export.corpora.test_candidates import _features, _reader, _tower

base = Path(sys.argv[1])
features = _features() | {"tags": EmbeddedFeature(kind="bag", table="movies", role="candidate", combiner="sum")}
part = CorpusPart(file="corpus.tfrecord", id="id", prebatched=True,
                  features={"movie": "row", "year": "year", "tags": "tags"}, attributes=("title",))
index = IndexPart(corpus="movies", query_tower="query", candidate_tower="candidate", kind="brute_force")
same = example({"row": (np.arange(4000) % 900).tolist(), "tags": (np.arange(160_000) % 900).tolist(),
                "year": [2000.0] * 4000, "title": ["title"] * 4000})

def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def steps(records, vectors):
    with (base / "corpus.tfrecord").open("wb") as file:
        for number in range(records):
            ids = [f"id {each}" for each in range(number * 4000, (number + 1) * 4000)]
            file.write(record(same + example({"id": ids})))  # fields of messages that follow one another are merged
    at = {"begin": peak()}
    corpus = write_candidates(base, "movies", part, features, base)
    at["candidates"] = peak()
    write_vectors(base, "nearest", "movies", corpus, _tower(), _reader(base, features))
    at["vectors"] = peak()
    random = np.random.default_rng(0)
    path = base / paths.index_vectors("wide")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for _ in range(vectors // 4096):
            file.write(random.random((4096, 64), np.float32).data)
    at["written"] = peak()
    build_index(base, "wide", index, random.random((20, 64), np.float32))
    at["indexes"] = peak()
    sizes = {"store": (base / corpus.file).stat().st_size, "index_vectors": path.stat().st_size}
    return {"size": corpus.size, **sizes, **at}

steps(1, 4096)
print(json.dumps(steps(240, 1 << 20)))
"""


def test_every_step_over_candidates_takes_memory_that_does_not_grow_with_them(tmp_path: Path) -> None:
    write_tower_files(tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], check=True, capture_output=True, cwd=ROOT, timeout=300
    )

    told = json.loads(done.stdout.splitlines()[-1])
    assert told["size"] == CANDIDATES
    assert told["store"] > STORE_BYTES > 3 * ALLOWED_BYTES
    assert told["index_vectors"] == VECTOR_BYTES
    assert told["candidates"] - told["begin"] < ALLOWED_BYTES
    assert told["vectors"] - told["candidates"] < ALLOWED_BYTES
    assert told["indexes"] - told["written"] < VECTOR_BYTES + ALLOWED_BYTES  # one copy, which ScaNN searches


_READ = """
import json, sys
from pathlib import Path
from export.corpora.candidates import write_candidates
from export.recipe.schema import CorpusPart
from tests.export.corpora.test_candidates import PART, _features

base, file = Path(sys.argv[1]), sys.argv[2]

def read(name):
    part = PART.model_copy(update={"file": name, "attributes": ("title",)})
    corpus = write_candidates(base, "movies", part, _features(), base)
    status = Path("/proc/self/status").read_text()
    return {"store": (base / corpus.file).stat().st_size, "peak": int(status.split("VmHWM:")[1].split()[0]) << 10}

print(json.dumps([read(f"few-{file}"), read(f"all-{file}")]))
"""


def write_corpus(path: Path, rows: int) -> None:
    """Writes candidates in the format that the name ends with; Parquet in a single row group."""
    title = "a title of a film " * 20
    if path.suffix == ".parquet":
        table = pa.table({"id": np.arange(rows), "year": np.full(rows, 2000.0), "title": [title] * rows})
        parquet.write_table(table, path, row_group_size=rows, use_dictionary=False, compression="none")
    elif path.suffix == ".csv":
        path.write_text("id,year,title\n" + "".join(f"{row},2000.0,{title}\n" for row in range(rows)))
    else:
        same = example({"year": [2000.0], "title": [title]})
        with path.open("wb") as file:
            file.writelines(record(same + example({"id": [row]})) for row in range(rows))


@pytest.mark.parametrize("kind", ["parquet", "csv", "tfrecord"])
def test_corpus_of_any_format_is_read_in_memory_that_does_not_grow_with_it(tmp_path: Path, kind: str) -> None:
    write_corpus(tmp_path / f"few-corpus.{kind}", 50_000)
    write_corpus(tmp_path / f"all-corpus.{kind}", 400_000)
    command = [sys.executable, "-c", _READ, str(tmp_path), f"corpus.{kind}"]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=300)
    less, more = json.loads(done.stdout.splitlines()[-1])
    assert more["store"] - less["store"] > 120 * MIB
    assert more["peak"] - less["peak"] < ALLOWED_BYTES
