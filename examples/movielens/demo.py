"""The whole way on real data: train, export, serve, request. Run by `make demo`, or

python -m examples.movielens.demo [--data DIR] [--short]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.table import Table
from rowcast_client import Client, Neighbor, RankedCandidate, RowcastError, Source, where

from examples import served
from examples.movielens import data, evaluate
from examples.movielens.client_calls import features, median_ms, ranked_ids
from examples.movielens.evaluate import Ask
from examples.movielens.examples import encode, requests
from examples.movielens.settings import Settings

BUILD = Path(__file__).resolve().parents[2] / "build"
DEMO = BUILD / "demo"
BUNDLES = DEMO / "bundles"
RECIPE = Path(__file__).with_name("recipe.toml")
MODEL = "movielens"
MODEL_INDEX = "movies"
POPULAR = 50
"""Popular movies that are ranked beside those of the index."""
SHORT = replace(Settings(), epochs=2)
SHORT_VIEWERS = 100
TIMED = 30
"""Requests of each kind that are timed."""
NUMBERS = ("score", "seconds", "ms", "as first", "seen", "distinct genres", "hit-rate")
WIDEST = {"title": 25, "genres": 16}
"""Columns of the tables, in letters: all of them fit a terminal of 80."""


class StageFailed(Exception):
    """A stage could not be done; the message says where to read on."""


class Stages:
    """The demo's stages, each announced and timed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._times = list[tuple[str, float]]()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announces a stage and takes its time."""
        self._console.rule(f"[bold]{name}", align="left")
        start = time.monotonic()
        yield
        self._times.append((name, time.monotonic() - start))

    def table(self) -> Table:
        """Returns the time of each stage."""
        table = _table("time", "stage", "seconds")
        for name, seconds in [*self._times, ("all", sum(seconds for _, seconds in self._times))]:
            table.add_row(name, f"{seconds:.1f}")
        return table


class Titles:
    """Movies as people know them."""

    def __init__(self, movies: data.Movies) -> None:
        self._movies = movies

    def genres(self, movies: data.Ints) -> set[str]:
        """Returns the genres of some movie ids."""
        rows = np.searchsorted(self._movies.ids, movies).tolist()
        return {genre for row in rows for genre in self._movies.genres[row]}

    def row(self, movie: int) -> tuple[str, str, str]:
        """Returns title, year and genres of a movie id."""
        row = int(np.searchsorted(self._movies.ids, movie))
        year = int(self._movies.years[row])
        return (
            self._movies.titles[row],
            str(year) if year else "",
            ", ".join(self._movies.genres[row]),
        )


def demonstrate(directory: Path | None, short: bool, console: Console) -> None:
    """Runs all stages.

    Raises:
      DataError, StageFailed, ServiceFailed, RowcastError: a stage failed; the message says what to
        read.
    """
    stages = Stages(console)
    settings = SHORT if short else Settings()
    with stages.stage("data"):
        found = data.find(directory, BUILD)
        encoded = encode(found)
        parts = data.split(found.ratings)
        console.print(f"[green]{found.source}[/]", highlight=False)
        console.print(
            f"{len(encoded.user_ids)} viewers, {len(encoded.movie_ids)} movies, "
            f"{len(encoded.users)} ratings; the last {data.HELD_OUT} of each viewer are held out"
        )
    with stages.stage("train"):
        from examples.movielens import train  # TensorFlow is loaded now, and not before

        train.train(found, DEMO, settings)
    with stages.stage("export"):
        version = _export(console)
    questions = evaluate.asks(encoded, requests(encoded, parts.test, settings.history))
    if short:
        questions = questions[:SHORT_VIEWERS]
    log = DEMO / "serve.log"
    with ExitStack() as stack:
        with stages.stage("serve"):
            console.print(
                f"rowcast-serve --root {_shown(BUNDLES)}, log in {_shown(log)}", highlight=False
            )
            service = stack.enter_context(served.serving(BUNDLES, MODEL, version, log))
        grpc = stack.enter_context(Client(service.grpc))
        http = stack.enter_context(Client(service.http))
        with stages.stage("request"):
            _ask(questions[0], Titles(found.movies), grpc, http, settings.rank_depth, console)
        with stages.stage("change"):
            _change_catalog(questions[0], found.movies.ids, service, http, settings, console)
        with stages.stage("quality"):
            popular = evaluate.popularity(
                encoded, np.union1d(parts.train, parts.validation), questions
            )
            _quality(questions, popular, http, settings.rank_depth, console)
        with stages.stage("shape"):
            _shape(questions, Titles(found.movies), http, settings.rank_depth, console)
        with stages.stage("cost"):
            _time(questions, found.movies.ids, grpc, settings.rank_depth, console)
            _facts(service, console)
    console.print(stages.table())


def _export(console: Console) -> int:
    """Runs the export on the trained checkpoint; returns the version that it published."""
    command = [served.program("rowcast-export"), "run", str(RECIPE)]
    console.print(f"rowcast-export run {_shown(RECIPE)}", highlight=False)
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise StageFailed(f"the export ended with {code}; the problem is shown above")
    return max(
        int(manifest.parent.name) for manifest in (BUNDLES / MODEL).glob("[0-9]*/manifest.json")
    )


def _ask(
    question: Ask, titles: Titles, grpc: Client, http: Client, depth: int, console: Console
) -> None:
    """Sends all three calls for one viewer and shows the answers."""
    asked = features(question)
    watched = _table(f"viewer {question.user_id} watched last", "title", "year", "genres")
    for movie in question.history[-5:][::-1].tolist():
        watched.add_row(*titles.row(movie))
    console.print(watched)
    attributes = ("title", "year", "genres")
    nearest = grpc.retrieve(asked, k=10, exclude_ids=question.seen, attributes=attributes)
    candidates = nearest[0].ids.tolist()
    ranked = http.rank(asked, candidates, k=10)[0]
    recommended = http.recommend(
        asked,
        k=10,
        sources=_sources(depth),
        exclude_ids=question.seen,
        attributes=attributes,
    )
    console.print(_movies("nearest movies (gRPC Retrieve)", question, titles, _scored(nearest[0])))
    console.print(_movies("the same, ranked (HTTP :rank)", question, titles, _scored(ranked)))
    console.print(
        _movies(
            "retrieved and ranked in one call (HTTP :recommend)",
            question,
            titles,
            _scored(recommended[0]),
            recommended[0].sources or (),
        )
    )


def _sources(depth: int) -> list[Source]:
    """Returns where candidates come from: the index, and the popular movies, one to three of which
    are in each list.
    """
    popular: Source = {"list": "popular", "pool_size": POPULAR, "min_count": 1, "max_count": 3}
    return [{"index": MODEL_INDEX, "pool_size": depth}, popular]


def _scored(answers: Sequence[RankedCandidate | Neighbor]) -> list[tuple[int, float]]:
    return [(int(one.id or 0), one.score) for one in answers]


def _movies(
    title: str,
    question: Ask,
    titles: Titles,
    scored: Sequence[tuple[int, float]],
    sources: Sequence[str] = (),
) -> Table:
    """Returns a table of movies, and which of them the viewer watched next; with sources, that of
    each.
    """
    columns = ["title", "year", "genres", "score", "hit"]
    if sources:
        columns.append("source")
    table = _table(title, *columns)
    table.caption = "hit: the viewer watched it next"
    table.caption_justify = "left"
    for row, (movie, score) in enumerate(scored):
        was_seen = "✓" if movie in question.wanted else ""
        table.add_row(*titles.row(movie), f"{score:.3f}", was_seen, *sources[row : row + 1])
    return table


def _table(title: str, *columns: str) -> Table:
    """Returns an empty table with one line a row; numbers stand right."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in NUMBERS else "left",
            no_wrap=True,
            max_width=WIDEST.get(column),
        )
    return table


def _change_catalog(
    question: Ask,
    movies: data.Ints,
    service: served.Service,
    http: Client,
    settings: Settings,
    console: Console,
) -> None:
    """Adds a movie while the model is served, changes its year, and deletes it again."""
    recommend = partial(
        http.recommend,
        features(question),
        k=10,
        pool_size=settings.rank_depth,
        exclude_ids=question.seen,
        attributes=("title", "year"),
    )
    best = recommend()[0][0]
    new = int(movies.max()) + 1
    sequel = _sequel(int(best.id or 0), new)
    console.print(f"A movie appears: {sequel['attributes']['title']}.", highlight=False)
    _ctl(service, "candidates", "upsert", sequel, console)
    position, year = _position(recommend()[0], new)
    if not position:
        raise StageFailed("the movie that was added is not recommended")
    console.print(f"It is number {position} of the next recommendation, with the year {year}.")

    item = {"id": new, "attributes": {"year": year + 1}}
    _ctl(service, "candidates", "attributes", item, console)
    _, changed_year = _position(recommend()[0], new)
    if changed_year != year + 1:
        raise StageFailed(f"the movie has the year {changed_year}, not {year + 1}")
    console.print(f"Its year is {changed_year} now.")

    _ctl(service, "candidates", "delete", {"id": new}, console)
    if _position(recommend()[0], new)[0]:
        raise StageFailed("the movie that was deleted is still recommended")
    console.print("It is not recommended any more.")


def _sequel(movie: int, new: int) -> dict[str, Any]:
    """Returns a new movie that the model reads as another one, of which it is the sequel."""
    file = DEMO / "movies.parquet"
    (row,) = pq.read_table(file, filters=[("movie_id", "==", movie)]).to_pylist()
    inputs = ("movie_id", "genres", "year", "companions", "closeness")
    return {
        "id": new,
        "features": {name: row[name] for name in inputs},
        "attributes": {"title": f"{row['title']}, Part II", "year": row["year"]},
    }


def _position(neighbors: Iterable[Neighbor], movie: int) -> tuple[int, int]:
    """Returns the place of a movie in a list, from 1, and its year; 0 and 0: it is not there."""
    for position, neighbor in enumerate(neighbors, 1):
        if neighbor.id == movie:
            return position, int(neighbor.attributes["year"])
    return 0, 0


def _ctl(
    service: served.Service, group: str, action: str, item: dict[str, Any], console: Console
) -> None:
    """Sends a change by `rowcast-serve ctl`, and shows what it prints."""
    options = ["ctl", "--ports-file", str(service.ports), group, action, MODEL, "--file", "-"]
    done = subprocess.run(
        [served.program("rowcast-serve"), *options],
        input=json.dumps(item),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise StageFailed(f"rowcast-serve ctl {group} {action} failed: {done.stderr}")
    console.print(f"ctl {group} {action}: {done.stdout.strip()}", highlight=False)


def _quality(
    questions: Sequence[Ask], popular: list[data.Ints], http: Client, depth: int, console: Console
) -> None:
    """Measures the service's own answers, and what ranking adds to retrieval."""
    measured = [
        evaluate.measure(name, questions, answers)
        for name, answers in {
            "popularity": popular,
            "retrieval": ranked_ids(http.retrieve, questions),
            "retrieval + ranking": ranked_ids(http.recommend, questions, pool_size=depth),
        }.items()
    ]
    title = f"served answers against what {len(questions)} viewers watched next (95 % intervals)"
    table = _table(title, "", f"hit-rate@{evaluate.K}", f"NDCG@{evaluate.K}")
    for quality in measured:
        table.add_row(quality.name, str(quality.hit_rate), str(quality.ndcg))
    console.print(table)
    _, retrieval, ranking = measured
    added = evaluate.bootstrap(ranking.gains - retrieval.gains)
    console.print(f"What ranking changes, viewer by viewer: NDCG@{evaluate.K} by {added}.")
    if added.low > 0:
        console.print(
            "It wins: a tower makes one vector of the history before any movie is known; the "
            "ranker sees the pair, and knows which movies this one is watched after."
        )
    elif added.high < 0:
        console.print(
            "It loses: on this data, what the ranker sees of a pair is nothing that the towers do "
            "not know."
        )
    else:
        console.print(
            "The interval holds 0: whether ranking helps cannot be told from so few viewers."
        )


def _shape(
    questions: Sequence[Ask], titles: Titles, http: Client, depth: int, console: Console
) -> None:
    """Shows what a filter, the exclusion of seen movies and diversity make of the lists, and what
    they cost.
    """
    first = questions[0]
    recommend = partial(http.recommend, pool_size=depth)
    comedies = where("genres").any_of("Comedy") & where("year").between(1990, 1999)
    found = recommend(features(first), k=10, exclude_ids=first.seen, filter=comedies, explain=True)
    console.print(_movies("comedies of the 1990s (filter)", first, titles, _scored(found[0])))
    how = found.explanations[0]
    console.print(
        f"{how.matches} movies match and were not seen ({how.selectivity:.1%}); {how.scored} were "
        "scored, path "
        f"{how.path}, {how.search_ms:.1f} ms. {how.shortfall}".rstrip()
    )
    lists = {
        "nothing seen before": ranked_ids(recommend, questions),
        "seen movies allowed": ranked_ids(recommend, questions, seen=True),
        "comedies of the 1990s": ranked_ids(recommend, questions, filter=comedies),
        "diversity 0.5": ranked_ids(recommend, questions, diversity=0.5),
    }
    hits = {
        name: np.array(
            [np.isin(one, asked.wanted).any() for asked, one in zip(questions, found, strict=True)],
            float,
        )
        for name, found in lists.items()
    }
    table = _table(
        f"lists of {evaluate.K}, means of {len(questions)} viewers",
        "",
        "as first",
        "seen",
        "distinct genres",
        "hit-rate",
    )
    plain = lists["nothing seen before"]
    means = {}
    for name, answers in lists.items():
        same = np.mean(
            [np.isin(one, other).sum() for one, other in zip(answers, plain, strict=True)]
        )
        seen = np.mean(
            [np.isin(one, asked.seen).sum() for asked, one in zip(questions, answers, strict=True)]
        )
        means[name] = seen, np.mean([len(titles.genres(one)) for one in answers])
        table.add_row(
            name, *(f"{mean:.1f}" for mean in (same, *means[name])), f"{hits[name].mean():.4f}"
        )
    console.print(table)
    change = evaluate.bootstrap(hits["diversity 0.5"] - hits["nothing seen before"])
    repeated = means["seen movies allowed"][0]
    before = means["nothing seen before"][1]
    after = means["diversity 0.5"][1]
    console.print(
        f"Without the exclusion, {repeated:.1f} of {evaluate.K} places go to movies already seen. "
        "Diversity "
        f"changes the genres of a list from {before:.1f} to {after:.1f}, and hit-rate@{evaluate.K} "
        f"by {change}."
    )


def _time(
    questions: Sequence[Ask], movies: data.Ints, grpc: Client, depth: int, console: Console
) -> None:
    """Compares one stage with two, and the tree with exact search, by the time of
    single requests.
    """
    (index,) = grpc.model(MODEL).indexes
    movies_searched = f"{index.size:,} movies"

    def near(question: Ask, **options: Any) -> Any:
        return grpc.retrieve(features(question), k=depth, **options)

    def ranked(question: Ask) -> Any:
        return grpc.recommend(features(question), pool_size=depth)

    def exhaustive(question: Ask) -> Any:
        return grpc.rank(features(question), movies, k=evaluate.K)

    timed = questions[:TIMED]
    tree_ms = median_ms(near, timed)
    exact_ms = median_ms(partial(near, exact=True), timed)
    table = _table(f"time of one request over gRPC, median of {len(timed)}", "", "ms")
    table.add_row(f"retrieve {depth} of {movies_searched}, {index.kind}", f"{tree_ms:.1f}")
    table.add_row(f"retrieve {depth} of {movies_searched}, exact search", f"{exact_ms:.1f}")
    table.add_row(f"retrieve {depth} and rank them: two stages", f"{median_ms(ranked, timed):.1f}")
    table.add_row(
        f"rank all {movies_searched}: no retrieval", f"{median_ms(exhaustive, timed):.1f}"
    )
    console.print(table)
    found = ranked_ids(grpc.retrieve, questions, k=depth)
    exact = ranked_ids(grpc.retrieve, questions, k=depth, exact=True)
    recall = np.mean([np.isin(one, other).mean() for one, other in zip(exact, found, strict=True)])
    saved = 1 - tree_ms / exact_ms
    verdict = (
        f"saves {saved:.0%} of the time"
        if saved > 0.1
        else "saves no time: so few are searched exactly as fast"
    )
    console.print(
        f"The {index.kind} index finds {recall:.1%} of the {depth} nearest movies "
        f"({index.recall:.1%} when exported) and {verdict}."
    )


def _facts(service: served.Service, console: Console) -> None:
    """Shows memory and libraries."""
    mapped = served.tensorflow_mapped(service.process)
    resident = served.resident_bytes(service.process)
    if mapped:
        raise StageFailed("TensorFlow is mapped in the service, which should run without it")
    if mapped is False and resident is not None:
        console.print(f"The service holds {resident / 1e6:.0f} MB, and no TensorFlow.")


def _go_on(console: Console) -> None:
    body = (
        '{"context": {"user_id": 1, "history": [1, 260, 1196], "hour": 20}, '
        '"exclude_ids": [1, 260, 1196], "k": 5, "attributes": ["title"]}'
    )
    console.rule("[bold]go on", align="left")
    console.print(
        f".venv/bin/rowcast-serve --root {_shown(BUNDLES)}", highlight=False, soft_wrap=True
    )
    console.print(
        f"curl -s -H 'content-type: application/json' localhost:8080/v1/models/{MODEL}:recommend "
        f"-d '{body}'",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def _shown(path: Path) -> str:
    """Returns a path as seen from where the demo was started, if that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.movielens.demo", description="Train, export, serve, request."
    )
    parser.add_argument(
        "--data", type=Path, help="folder with MovieLens' movies.csv and ratings.csv"
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="train briefly and measure few viewers: a check, no showcase",
    )
    arguments = parser.parse_args()
    console = Console()
    try:
        demonstrate(arguments.data, arguments.short, console)
    except (data.DataError, StageFailed, served.ServiceFailed) as problem:
        console.print(f"[red]the demo stopped:[/] {problem}")
        return 1
    except RowcastError as problem:
        console.print(
            f"[red]the service answered with an error:[/] {problem}; read "
            f"{_shown(DEMO / 'serve.log')}"
        )
        return 1
    _go_on(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
