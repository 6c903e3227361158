"""The example's data: what is read, what is made, and how it is split."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from examples.movielens import data, generated

ROOT = Path(__file__).parents[3]
SMALL = generated.Shape(users=30, movies=400, ratings=1_500, clusters=4)


def write_files(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "README.txt").write_text("licence")
    (directory / "movies.csv").write_text(
        'movieId,title,genres\n193609,"Dice, The (1991)",Comedy\n'
        "1,Toy Story (1995),Adventure|Children\n7,Untold,(no genres listed)\n"
    )
    (directory / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n2,7,3.0,50\n1,193609,4.0,100\n1,7,4.0,100\n1,1,5.0,99\n"
    )


def test_synthetic_data_has_the_movies_of_the_docs() -> None:
    pages = [ROOT / "README.md", ROOT / "client" / "README.md"]
    request_pattern = re.compile(
        r'(?:candidates|history|exclude|"id|"ids|--candidates)"?[ :=]+\[?(\d[\d, ]*)'
    )
    ids = {
        int(movie)
        for page in pages
        for history_text in request_pattern.findall(page.read_text())
        for movie in re.findall(r"\d+", history_text)
    }
    assert {1, 260, 1196} <= ids
    assert ids <= set(data.make().movies.ids.tolist())


def test_synthetic_data_depends_on_the_seed_alone() -> None:
    first = data.make(3, SMALL)
    same_seed = data.make(3, SMALL)
    other_seed = data.make(4, SMALL)
    assert np.array_equal(first.ratings.movies, same_seed.ratings.movies)
    assert np.array_equal(first.ratings.timestamps, same_seed.ratings.timestamps)
    assert first.movies.genres == same_seed.movies.genres
    assert not np.array_equal(first.ratings.movies, other_seed.ratings.movies)


def test_read_orders_by_time_then_movie_and_takes_titles_apart(tmp_path: Path) -> None:
    write_files(tmp_path)
    read = data.read(tmp_path)
    assert read.movies.ids.tolist() == [1, 7, 193609]
    assert read.movies.titles == ("Toy Story", "Untold", "Dice, The")
    assert read.movies.years.tolist() == [1995, 0, 1991]
    assert read.movies.genres[0] == ("Adventure", "Children")
    assert read.ratings.users.tolist() == [1, 1, 1, 2]
    assert read.ratings.movies.tolist() == [1, 7, 193609, 7]
    assert str(tmp_path) in read.source


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("movies.csv", None, "movies.csv cannot be read"),
        ("ratings.csv", "userId,movieId\n1,1\n", "no column 'timestamp'"),
        ("ratings.csv", "userId,movieId,timestamp\n1,x,3\n", "no MovieLens data"),
        ("ratings.csv", "userId,movieId,timestamp\n1,5,3\n", "names movie 5"),
        ("movies.csv", "movieId,title,genres\n", "has no rows"),
    ],
)
def test_read_of_other_files_names_the_fault(
    tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    write_files(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(data.DataError, match=message):
        data.read(tmp_path)


def test_split_holds_out_the_last_ten_and_the_ten_before() -> None:
    users = np.repeat(np.array([1, 2, 3], np.int64), [25, 20, 12])
    ratings = data.ordered(users, np.arange(57), np.arange(57))
    parts = data.split(ratings)
    assert parts.train.tolist() == [0, 1, 2, 3, 4]
    assert parts.validation.tolist() == [*range(5, 15), *range(25, 35), 45, 46]
    assert parts.test.tolist() == [*range(15, 25), *range(35, 45), *range(47, 57)]


def test_download_unpacks_what_the_site_sends_once_and_keeps_nothing_unusable(
    tmp_path: Path,
) -> None:
    source = tmp_path / "files"
    write_files(source)
    archive = tmp_path / "site.zip"
    with zipfile.ZipFile(archive, "w") as pack:
        for file in source.iterdir():
            pack.write(file, f"ml-latest-small/{file.name}")
    unusable = tmp_path / "unusable.zip"
    unusable.write_bytes(b"no archive")
    with pytest.raises(data.DataError, match="cannot be downloaded"):
        data.download(tmp_path / "build", unusable.as_uri())
    assert not (tmp_path / "build").exists()
    directory = data.download(tmp_path / "build", archive.as_uri())
    archive.unlink()
    assert data.download(tmp_path / "build", archive.as_uri()) == directory
    assert len(data.read(directory).ratings.users) == 4


def test_find_makes_synthetic_data_without_a_directory_or_site_but_not_for_a_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> Path:
        raise data.DataError("the site cannot be downloaded")

    monkeypatch.setattr(data, "download", unreachable)
    movielens = data.find(None, tmp_path)
    assert "made up" in movielens.source
    assert "cannot be downloaded" in movielens.source
    with pytest.raises(data.DataError, match=r"movies\.csv"):
        data.find(tmp_path / "nowhere", tmp_path)
