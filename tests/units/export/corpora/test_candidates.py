from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
from bundle.format.manifest import DenseFeature, EmbeddedFeature, Feature, Unknown
from bundle.stores.reader import CandidateStore
from bundle.tables.reader import SegmentWriter, TableReader
from export.corpora import candidates, files
from export.corpora.candidates import write_vectors
from export.corpora.files import locate_corpus
from export.corpora.reading import CorpusReader
from export.errors import DestinationError, NotConvertible
from export.recipe.schema import CorpusSection
from tests.units.export.corpora.written import write
from tests.units.runtime.tower_files import write_tower_files

ROWS = 900
PART = CorpusSection(
    file="movies.csv", id="id", features={"movie": "id", "year": "year"}, attributes=("year",)
)


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("towers")
    write_tower_files(directory)
    return directory


def _features(year_default: float | None = None) -> dict[str, Feature]:
    return {
        "movie": EmbeddedFeature(
            kind="single", table="movies", role="candidate", unknown=Unknown(rule="refuse")
        ),
        "year": DenseFeature(kind="dense", role="candidate", default=year_default),
    }


def _tower() -> manifest.Tower:
    return manifest.Tower(
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


def _table() -> NDArray[np.float32]:
    return np.random.default_rng(5).normal(size=(ROWS, 8)).astype(np.float32)


def _reader(base: Path, features: dict[str, Feature]) -> FeatureReader:
    file = paths.table_segment("movies", 0, 1)
    writer = SegmentWriter(base / file)
    writer.write(_table().tobytes())
    digest = writer.close()
    table = manifest.Table(
        rows=ROWS,
        dim=8,
        dtype="float32",
        segments=(
            manifest.Segment(
                file=file, first_row=0, rows=ROWS, crc32c=digest.crc32c, blocks=digest.blocks
            ),
        ),
        source=manifest.TableSource(layout="plain", key="movies"),
    )
    return FeatureReader(features, {"movies": TableReader(base, table)}, {})


def _stage(base: Path, towers: Path, lines: list[str]) -> Path:
    (base / "candidate").mkdir()
    (base / "candidate" / "compiled-f32.tflite").write_bytes(
        (towers / "candidate" / "compiled-f32.tflite").read_bytes()
    )
    source = base / "movies.csv"
    source.write_text("id,year\n" + "".join(f"{line}\n" for line in lines))
    return source


def test_write_vectors_of_any_batch_size_are_in_the_order_of_the_file(
    towers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.random.default_rng(1).permutation(ROWS)[:500]
    source = _stage(tmp_path, towers, [f"{movie},{1950 + movie % 70}" for movie in ids])
    features = _features()
    corpus = write(tmp_path, PART, features, source.parent)
    assert (corpus.size, corpus.id_dtype, corpus.attributes) == (500, "int64", {"year": "int64"})
    assert corpus.file == "corpora/movies/store.arrow"
    assert (
        CandidateStore(tmp_path / corpus.file, corpus).ids(np.arange(500)).tolist() == ids.tolist()
    )

    written = []
    for batch in (1, 64, 500):
        monkeypatch.setattr(candidates, "BATCH_CANDIDATES", batch)
        dim = write_vectors(
            tmp_path, "nearest", "movies", corpus, _tower(), _reader(tmp_path, features)
        )
        written.append((tmp_path / paths.index_vectors("nearest")).read_bytes())

    assert (dim, written[0] == written[1] == written[2]) == (8, True)
    vectors = np.frombuffer(written[0], "<f4").reshape(-1, dim)
    with np.load(towers / "weights.npz") as weights:
        joined = np.column_stack([_table()[ids].astype(np.float64), np.log(1950.0 + ids % 70)])
        wanted: NDArray[np.float64] = joined @ weights["candidate"]
    np.testing.assert_allclose(vectors, wanted, rtol=1e-5, atol=1e-5)


def resident_kib(file: Path) -> int:
    """Returns how much of a file's maps is in the memory of this process."""
    maps = Path("/proc/self/smaps").read_text().split(f" {file}\n")[1:]
    return sum(int(mapping.split("Rss:")[1].split()[0]) for mapping in maps)


def test_write_vectors_lets_go_of_the_pages_of_tables(towers: Path, tmp_path: Path) -> None:
    source = _stage(tmp_path, towers, [f"{movie},1999" for movie in range(ROWS)])
    features = _features()
    corpus = write(tmp_path, PART, features, source.parent)
    reader = _reader(tmp_path, features)
    table = reader.tables["movies"]
    segment = (tmp_path / paths.table_segment("movies", 0, 1)).resolve()
    table.gather(np.arange(ROWS))
    assert resident_kib(segment) >= ROWS * 32 // 1024

    write_vectors(tmp_path, "nearest", "movies", corpus, _tower(), reader)

    assert resident_kib(segment) == 0
    table.close()


def test_write_vectors_feature_that_the_corpus_lacks_takes_its_default(
    towers: Path, tmp_path: Path
) -> None:
    source = _stage(tmp_path, towers, ["3,1", "4,1"])
    part = CorpusSection(file="movies.csv", id="id", features={"movie": "id"})
    with_default = _features(year_default=1.0)
    without = _features()
    corpus = write(tmp_path, part, with_default, source.parent)

    write_vectors(tmp_path, "nearest", "movies", corpus, _tower(), _reader(tmp_path, with_default))
    vectors = np.fromfile(tmp_path / paths.index_vectors("nearest"), "<f4").reshape(-1, 8)
    with np.load(towers / "weights.npz") as weights:
        np.testing.assert_allclose(
            vectors, _table()[[3, 4]] @ weights["candidate"][:8], rtol=1e-5, atol=1e-6
        )

    with pytest.raises(
        NotConvertible, match=r"feature 'year'.*name its column in corpora\.movies\.features"
    ):
        write_vectors(tmp_path, "nearest", "movies", corpus, _tower(), _reader(tmp_path, without))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("700,0", "the vector of candidate 700 (row 101) holds NaN or an infinity"),
        ("900,1999", "candidate 900 (row 101): feature 'movie': id 900 is not in table 'movies'"),
    ],
)
def test_write_vectors_unfit_candidate_is_named(
    towers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    monkeypatch.setattr(candidates, "BATCH_CANDIDATES", 64)
    features = _features()
    source = _stage(
        tmp_path, towers, [*(f"{movie},1999" for movie in range(100)), line, "800,1999"]
    )
    corpus = write(tmp_path, PART, features, source.parent)

    with pytest.raises(NotConvertible) as rejection:
        write_vectors(tmp_path, "nearest", "movies", corpus, _tower(), _reader(tmp_path, features))

    assert message in str(rejection.value)


def test_more_candidates_than_positions_have_bits_for_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "CANDIDATES_MAX", 3)
    rows = "".join(f"{row},{row}\n" for row in range(4))
    (tmp_path / "movies.csv").write_text("id,year\n" + rows)
    with pytest.raises(NotConvertible, match=r"corpora\.movies: its files hold 4 candidates"):
        write(tmp_path / "bundle", PART, _features(), tmp_path)
    assert not (tmp_path / "bundle" / paths.corpus_store("movies")).exists()

    reader = CorpusReader(locate_corpus(tmp_path, "movies", PART), "movies", PART, _features())
    contexts = candidates.write_store(tmp_path, "users.arrow", reader, searched=False)
    assert contexts.size == 4


def test_store_that_cannot_be_written_is_a_destination_error(tmp_path: Path) -> None:
    _csv(tmp_path, 4)
    (tmp_path / "bundle").write_text("a file")
    with pytest.raises(DestinationError) as rejection:
        write(tmp_path / "bundle", PART, _features(), tmp_path)
    assert str(rejection.value) == (
        "store 'corpora/movies/store.arrow' cannot be written: Not a directory; free some space, "
        "then run again"
    )


def test_filter_that_cannot_be_written_is_a_destination_error(tmp_path: Path) -> None:
    _csv(tmp_path, 4)
    corpus = write(tmp_path / "bundle", PART, _features(), tmp_path)
    entry = candidates.write_filter(tmp_path / "bundle", "movies", 0, corpus, "year")
    assert (tmp_path / "bundle" / entry.values).is_file()
    assert (tmp_path / "bundle" / entry.rows).is_file()
    (tmp_path / "bundle" / paths.attribute_values("movies", 1)).parent.write_text("a file")
    with pytest.raises(DestinationError, match="filter 'year' of corpus 'movies' cannot be wri"):
        candidates.write_filter(tmp_path / "bundle", "movies", 1, corpus, "year")


def test_write_store_tells_how_many_candidates_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_READ_BYTES", 64)
    _csv(tmp_path, 50)
    monkeypatch.setattr(candidates, "CANDIDATES_MAX", 50)  # as many as positions have bits for
    reader = CorpusReader(locate_corpus(tmp_path, "movies", PART), "movies", PART, _features())
    moved: list[int] = []
    corpus = candidates.write_store(tmp_path, "movies.arrow", reader, moved.append)
    assert (corpus.size, sum(moved)) == (50, 50)
    assert len(moved) > 3


def test_write_vectors_tells_how_many_candidates_it_embedded(
    towers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "BATCH_CANDIDATES", 3)
    source = _stage(tmp_path, towers, [f"{movie},1999" for movie in range(8)])
    features = _features()
    corpus = write(tmp_path, PART, features, source.parent)
    reader = _reader(tmp_path, features)
    moved: list[int] = []
    aside = tmp_path / "aside.bin"
    dim = write_vectors(
        tmp_path, "nearest", "movies", corpus, _tower(), reader, moved.append, aside
    )
    assert (dim, moved) == (8, [3, 3, 2])
    assert aside.stat().st_size == 8 * 8 * 4
    assert not (tmp_path / paths.index_vectors("nearest")).exists()
    aside.unlink()
    aside.mkdir()
    with pytest.raises(DestinationError, match=r"vectors 'indexes/nearest/vectors\.bin' cannot be"):
        write_vectors(tmp_path, "nearest", "movies", corpus, _tower(), reader, aside=aside)


def _csv(directory: Path, rows: int) -> None:
    """Writes the file of a corpus."""
    lines = "".join(f"{row},{row}\n" for row in range(rows))
    (directory / "movies.csv").write_text("id,year\n" + lines)
