"""All stages on real data: train, export, serve, request. Run by `make demo`, or

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
from examples.movielens.evaluate import Question
from examples.movielens.examples import encode, requests
from examples.movielens.settings import Settings

BUILD = Path(__file__).resolve().parents[2] / "build"
DEMO = BUILD / "demo"
BUNDLES = DEMO / "bundles"
RECIPE = Path(__file__).with_name("recipe.toml")
MODEL = "movielens"
MODEL_INDEX = "movies"
POPULAR = 50
"""Number of popular movies that are ranked beside the movies of the index."""
SHORT = replace(Settings(), epochs=2)
SHORT_VIEWERS = 100
"""Number of viewers that `--short` measures."""
TIMED = 30
"""Number of timed requests of each kind."""
NUMBERS = ("score", "seconds", "ms", "as first", "seen", "distinct genres", "hit-rate")
WIDEST = {"title": 25, "genres": 16}
"""Width of the widest columns, in letters: the tables fit a terminal of 80 columns."""


class StageFailed(Exception):
    """A stage failed; the message says where to read on."""


class Stages:
    """The demo's stages, each announced and timed."""

    def __init__(self, console: Console) -> None:
        """Begins without stages."""
        self._console = console
        self._times = list[tuple[str, float]]()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announces a stage and measures its time."""
        self._console.rule(f"[bold]{name}", align="left")
        start = time.monotonic()
        yield
        self._times.append((name, time.monotonic() - start))

    def table(self) -> Table:
        """Returns the time of each stage."""
        table = _table("time", "stage", "seconds")
        total_s = sum(seconds for _, seconds in self._times)
        for name, seconds in [*self._times, ("all", total_s)]:
            table.add_row(name, f"{seconds:.1f}")
        return table


class Titles:
    """Titles, years and genres of movies."""

    def __init__(self, movies: data.Movies) -> None:
        """Creates the titles of a catalogue."""
        self._movies = movies

    def genres(self, movies: data.Ints) -> set[str]:
        """Returns the genres of some movie ids."""
        rows = np.searchsorted(self._movies.ids, movies).tolist()
        return {genre for row in rows for genre in self._movies.genres[row]}

    def row(self, movie: int) -> tuple[str, str, str]:
        """Returns title, year and genres of a movie id."""
        row = int(np.searchsorted(self._movies.ids, movie))
        # The year 0 stands for an unknown one.
        year = int(self._movies.years[row]) or ""
        return self._movies.titles[row], str(year), ", ".join(self._movies.genres[row])


def demonstrate(directory: Path | None, short: bool, console: Console) -> None:
    """Runs all stages.

    Raises:
      DataError: The data cannot be read.
      StageFailed: A stage failed; the message says where to read on.
      ServiceFailed: The service did not become ready, or ended.
      RowcastError: The service rejected a request.
    """
    stages = Stages(console)
    settings = Settings()
    if short:
        settings = SHORT
    with stages.stage("data"):
        movielens = data.find(directory, BUILD)
        encoded = encode(movielens)
        parts = data.split(movielens.ratings)
        console.print(f"[green]{movielens.source}[/]", highlight=False)
        console.print(
            f"{len(encoded.user_ids)} viewers, {len(encoded.movie_ids)} movies, "
            f"{len(encoded.users)} ratings; the last {data.HELD_OUT} of each viewer are held out"
        )
    with stages.stage("train"):
        # Imported here, so that TensorFlow is loaded in the stage that needs it.
        from examples.movielens import train

        train.train(movielens, DEMO, settings)
    with stages.stage("export"):
        version = _export(console)
    questions = evaluate.questions_of(encoded, requests(encoded, parts.test, settings.history))
    if short:
        questions = questions[:SHORT_VIEWERS]
    log = DEMO / "serve.log"
    titles = Titles(movielens.movies)
    depth = settings.rank_depth
    with ExitStack() as stack:
        with stages.stage("serve"):
            console.print(
                f"rowcast-serve --root {_shown(BUNDLES)}, log in {_shown(log)}", highlight=False
            )
            service = stack.enter_context(served.serving(BUNDLES, MODEL, version, log))
        grpc = stack.enter_context(Client(service.grpc))
        http = stack.enter_context(Client(service.http))
        with stages.stage("request"):
            _recommend(questions[0], titles, grpc, http, depth, console)
        with stages.stage("change"):
            _change_catalog(questions[0], movielens.movies.ids, service, http, settings, console)
        with stages.stage("quality"):
            trained_on = np.union1d(parts.train, parts.validation)
            popular = evaluate.popularity(encoded, trained_on, questions)
            _quality(questions, popular, http, depth, console)
        with stages.stage("shape"):
            _shape(questions, titles, http, depth, console)
        with stages.stage("cost"):
            _time(questions, movielens.movies.ids, grpc, depth, console)
            _facts(service, console)
    console.print(stages.table())


def _export(console: Console) -> int:
    """Runs the export on the trained checkpoint; returns the version that it published."""
    command = [served.program("rowcast-export"), "run", str(RECIPE)]
    console.print(f"rowcast-export run {_shown(RECIPE)}", highlight=False)
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise StageFailed(f"the export ended with {code}; the problem is shown above")
    manifests = (BUNDLES / MODEL).glob("[0-9]*/manifest.json")
    return max(int(manifest.parent.name) for manifest in manifests)


def _recommend(
    question: Question, titles: Titles, grpc: Client, http: Client, depth: int, console: Console
) -> None:
    """Sends all three calls for one viewer and shows the responses."""
    context = features(question)
    watched = _table(f"viewer {question.user_id} watched last", "title", "year", "genres")
    for movie in question.history[-5:][::-1].tolist():
        watched.add_row(*titles.row(movie))
    console.print(watched)
    attributes = ("title", "year", "genres")
    nearest = grpc.retrieve(context, k=10, exclude_ids=question.seen, attributes=attributes)
    candidates = nearest[0].ids.tolist()
    ranked = http.rank(context, candidates, k=10)[0]
    recommended = http.recommend(
        context,
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
    """Returns the sources of the candidates: the index, and the popular movies, one to three of
    which are in each list.
    """
    popular: Source = {"list": "popular", "pool_size": POPULAR, "min_count": 1, "max_count": 3}
    return [{"index": MODEL_INDEX, "pool_size": depth}, popular]


def _scored(candidates: Sequence[RankedCandidate | Neighbor]) -> list[tuple[int, float]]:
    return [(int(candidate.id or 0), candidate.score) for candidate in candidates]


def _movies(
    title: str,
    question: Question,
    titles: Titles,
    scored: Sequence[tuple[int, float]],
    sources: Sequence[str] = (),
) -> Table:
    """Returns a table of movies, and which of them the viewer watched next; with sources, the
    source of each movie.
    """
    columns = ["title", "year", "genres", "score", "hit"]
    if sources:
        columns.append("source")
    table = _table(title, *columns)
    table.caption = "hit: the viewer watched it next"
    table.caption_justify = "left"
    for row, (movie, score) in enumerate(scored):
        hit = "✓" if movie in question.watched_next else ""
        table.add_row(*titles.row(movie), f"{score:.3f}", hit, *sources[row : row + 1])
    return table


def _table(title: str, *columns: str) -> Table:
    """Returns an empty table with one line per row; numbers are aligned at the right."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in columns:
        justify = "right" if column in NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=True, max_width=WIDEST.get(column))
    return table


def _change_catalog(
    question: Question,
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
    new_id = int(movies.max()) + 1
    sequel = _sequel(int(best.id or 0), new_id)
    console.print(f"A movie appears: {sequel['attributes']['title']}.", highlight=False)
    _ctl(service, "candidates", "upsert", sequel, console)
    position, year = _position(recommend()[0], new_id)
    if not position:
        raise StageFailed("the movie that was added is not recommended")
    console.print(f"It is number {position} of the next recommendation, with the year {year}.")

    changed = {"id": new_id, "attributes": {"year": year + 1}}
    _ctl(service, "candidates", "attributes", changed, console)
    _, changed_year = _position(recommend()[0], new_id)
    if changed_year != year + 1:
        raise StageFailed(f"the movie has the year {changed_year}, not {year + 1}")
    console.print(f"Its year is {changed_year} now.")

    _ctl(service, "candidates", "delete", {"id": new_id}, console)
    position, _ = _position(recommend()[0], new_id)
    if position:
        raise StageFailed("the movie that was deleted is still recommended")
    console.print("It is not recommended any more.")


def _sequel(movie: int, new_id: int) -> dict[str, Any]:
    """Returns a new movie, the sequel of another one, as a change of the candidates."""
    # The model has no row for the new id. It embeds the sequel by the features of the first part.
    file = DEMO / "movies.parquet"
    (row,) = pq.read_table(file, filters=[("movie_id", "==", movie)]).to_pylist()
    inputs = ("movie_id", "genres", "year", "companions", "closeness")
    return {
        "id": new_id,
        "features": {name: row[name] for name in inputs},
        "attributes": {"title": f"{row['title']}, Part II", "year": row["year"]},
    }


def _position(neighbors: Iterable[Neighbor], movie: int) -> tuple[int, int]:
    """Returns the position of a movie in a list, from 1, and its year; 0 and 0 if the list lacks
    it.
    """
    for position, neighbor in enumerate(neighbors, 1):
        if neighbor.id == movie:
            return position, int(neighbor.attributes["year"])
    return 0, 0


def _ctl(
    service: served.Service, group: str, action: str, item: dict[str, Any], console: Console
) -> None:
    """Sends a change by `rowcast-serve ctl`, and shows its output."""
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
    questions: Sequence[Question],
    popular: list[data.Ints],
    http: Client,
    depth: int,
    console: Console,
) -> None:
    """Measures the service's responses, and what ranking adds to retrieval."""
    lists = {
        "popularity": popular,
        "retrieval": ranked_ids(http.retrieve, questions),
        "retrieval + ranking": ranked_ids(http.recommend, questions, pool_size=depth),
    }
    measured = [evaluate.measure(name, questions, ids) for name, ids in lists.items()]
    title = f"served lists against what {len(questions)} viewers watched next (95 % intervals)"
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
        console.print("The interval holds 0: so few viewers do not show whether ranking helps.")


def _shape(
    questions: Sequence[Question], titles: Titles, http: Client, depth: int, console: Console
) -> None:
    """Shows how a filter, the exclusion of seen movies and diversity change the lists, and their
    cost.
    """
    first = questions[0]
    recommend = partial(http.recommend, pool_size=depth)
    comedies = where("genres").any_of("Comedy") & where("year").between(1990, 1999)
    filtered = recommend(
        features(first), k=10, exclude_ids=first.seen, filter=comedies, explain=True
    )
    console.print(_movies("comedies of the 1990s (filter)", first, titles, _scored(filtered[0])))
    explanation = filtered.explanations[0]
    summary = (
        f"{explanation.matches} movies match and were not seen ({explanation.selectivity:.1%}); "
        f"{explanation.scored} were scored, path {explanation.path}, "
        f"{explanation.search_ms:.1f} ms. {explanation.shortfall}"
    )
    console.print(summary.rstrip())
    lists = {
        "nothing seen before": ranked_ids(recommend, questions),
        "seen movies allowed": ranked_ids(recommend, questions, seen=True),
        "comedies of the 1990s": ranked_ids(recommend, questions, filter=comedies),
        "diversity 0.5": ranked_ids(recommend, questions, diversity=0.5),
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
    hits = {}
    seen_counts = {}
    genre_counts = {}
    for name, id_lists in lists.items():
        as_plain = [
            np.isin(ids, plain_ids).sum() for ids, plain_ids in zip(id_lists, plain, strict=True)
        ]
        pairs = list(zip(questions, id_lists, strict=True))
        is_hit = [np.isin(ids, question.watched_next).any() for question, ids in pairs]
        hits[name] = np.array(is_hit, float)
        seen_counts[name] = np.mean([np.isin(ids, question.seen).sum() for question, ids in pairs])
        genre_counts[name] = np.mean([len(titles.genres(ids)) for ids in id_lists])
        table.add_row(
            name,
            f"{np.mean(as_plain):.1f}",
            f"{seen_counts[name]:.1f}",
            f"{genre_counts[name]:.1f}",
            f"{hits[name].mean():.4f}",
        )
    console.print(table)

    change = evaluate.bootstrap(hits["diversity 0.5"] - hits["nothing seen before"])
    repeated = seen_counts["seen movies allowed"]
    before = genre_counts["nothing seen before"]
    after = genre_counts["diversity 0.5"]
    console.print(
        f"Without the exclusion, {repeated:.1f} of {evaluate.K} positions go to movies already "
        f"seen. Diversity changes the genres of a list from {before:.1f} to {after:.1f}, and "
        f"hit-rate@{evaluate.K} by {change}."
    )


def _time(
    questions: Sequence[Question], movies: data.Ints, grpc: Client, depth: int, console: Console
) -> None:
    """Compares one stage with two, and the index with exact search, by the time of single
    requests.
    """
    (index,) = grpc.model(MODEL).indexes
    movies_searched = f"{index.size:,} movies"

    def near(question: Question, **options: Any) -> Any:
        return grpc.retrieve(features(question), k=depth, **options)

    def ranked(question: Question) -> Any:
        return grpc.recommend(features(question), pool_size=depth)

    def exhaustive(question: Question) -> Any:
        return grpc.rank(features(question), movies, k=evaluate.K)

    timed = questions[:TIMED]
    index_ms = median_ms(near, timed)
    exact_ms = median_ms(partial(near, exact=True), timed)
    ranked_ms = median_ms(ranked, timed)
    exhaustive_ms = median_ms(exhaustive, timed)
    table = _table(f"time of one request over gRPC, median of {len(timed)}", "", "ms")
    table.add_row(f"retrieve {depth} of {movies_searched}, {index.kind}", f"{index_ms:.1f}")
    table.add_row(f"retrieve {depth} of {movies_searched}, exact search", f"{exact_ms:.1f}")
    table.add_row(f"retrieve {depth} and rank them: two stages", f"{ranked_ms:.1f}")
    table.add_row(f"rank all {movies_searched}: no retrieval", f"{exhaustive_ms:.1f}")
    console.print(table)

    nearest = ranked_ids(grpc.retrieve, questions, k=depth)
    exact = ranked_ids(grpc.retrieve, questions, k=depth, exact=True)
    recall = np.mean(
        [
            np.isin(exact_ids, nearest_ids).mean()
            for exact_ids, nearest_ids in zip(exact, nearest, strict=True)
        ]
    )
    saved = 1 - index_ms / exact_ms
    verdict = "saves no time: so few are searched exactly as fast"
    if saved > 0.1:
        verdict = f"saves {saved:.0%} of the time"
    console.print(
        f"The {index.kind} index finds {recall:.1%} of the {depth} nearest movies "
        f"({index.recall:.1%} when exported) and {verdict}."
    )


def _facts(service: served.Service, console: Console) -> None:
    """Shows the memory of the service, and that it runs without TensorFlow."""
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
    """Returns a path relative to the current directory, if it lies in it."""
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(path)


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
            f"[red]the service returned an error:[/] {problem}; read {_shown(DEMO / 'serve.log')}"
        )
        return 1
    _go_on(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
