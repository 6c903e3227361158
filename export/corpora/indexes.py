"""Candidate vectors -> ScaNN index at the cheapest setting whose recall, against exact search, reaches the target."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format import paths
from bundle.format.manifest import CostPoint, Distance, Index, Recall
from export.errors import DestinationError, NotConvertible, UsageError, VerificationFailed
from export.recipe.schema import IndexPart
from runtime.errors import IndexUnreadable, InvalidIndex, InvalidInput
from runtime.exact import ExactIndex, normalised
from runtime.partitions import load_index, partition_rows
from runtime.scann import TREE_PARAMETERS, Kind, ScannIndex, settle
from runtime.scann_build import Run, build_files, run_here
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
Setting = dict[str, Any]
"""What one search costs by: leaves_to_search and reorder; nothing of a brute force index."""
Once = Callable[[str, Callable[[], None]], None]
"""Has what makes a directory done, unless an earlier run did."""

BRUTE_FORCE_BELOW = 20_000
"""Source: google-research/scann docs/algorithms.md: below 20 000 points brute force, leaves about the square root."""
_LEAF_SHARES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.6, 1.0)
_REORDER_PER_NEIGHBOR = (2, 5, 15, 45)
_LEVELS_BEYOND_TARGET = 2
_EXACT_TIMED, _EXACT_TIMED_BLOCKS = 16, 4
_TIE = 1e-6
_Z95 = 1.959963984540054


def always(_: str, make: Callable[[], None]) -> None:
    """Does it."""
    make()


class ExactAnswers:
    """Exact answers to some queries, and what an index is measured by against them.

    Attributes:
      queries: [n, dim] those that were sampled.
      search_s: median time of one exact search, seconds.
    """

    def __init__(self, vectors: VectorFile, part: IndexPart, queries: Vectors) -> None:
        """Searches them.

        Raises:
          InvalidInput: a query or a vector holds NaN or infinities.
        """
        self._vectors, self._distance, self._k = (
            vectors,
            part.distance,
            min(part.recall.k, len(vectors)),
        )
        self._count = part.recall.queries
        self.queries = self._sampled(queries)
        found, _ = ExactIndex(vectors, part.distance).search(self.queries, self._k)
        # What a right neighbor reaches: the score of the k-th one.
        self._worst = [
            self._scores(row, query).min() for row, query in zip(found, self.queries, strict=True)
        ]
        # Its time grows with the number of vectors, so it is taken over as many as may be in memory and fill no cache.
        timed = vectors[: _EXACT_TIMED_BLOCKS * vectors.block_rows]
        exact = ExactIndex(timed, part.distance)
        times = []
        for query in self.queries[:_EXACT_TIMED]:
            began = time.perf_counter()
            exact.search(query[np.newaxis], self._k)
            times.append(time.perf_counter() - began)
        self.search_s = float(np.median(times)) * len(vectors) / len(timed)

    def measure(
        self, index: ScannIndex, setting: Setting, asked: Vectors | None = None
    ) -> tuple[float, float]:
        """Returns recall and the median time of one search, seconds; `asked` is sent in place of the queries.

        A neighbor counts as right if its exact score reaches that of the true k-th one, less 1e-6 of it: among equals
        any is as good, and float32 cannot tell closer ones apart.
        """
        right, times = 0, []
        sent = self.queries if asked is None else self._sampled(asked)
        for query, worst, each in zip(self.queries, self._worst, sent, strict=True):
            began = time.perf_counter()
            found, _ = index.search(each[np.newaxis], self._k, **setting)
            times.append(time.perf_counter() - began)
            positions = np.unique(found[0][found[0] >= 0])
            right += int((self._scores(positions, query) >= worst - _TIE * abs(worst)).sum())
        return right / (self._k * len(self.queries)), float(np.median(times))

    def _sampled(self, queries: Vectors) -> Vectors:
        rows = (
            np.linspace(0, len(queries) - 1, min(self._count, len(queries)))
            .round()
            .astype(np.int64)
        )
        return np.ascontiguousarray(queries[np.unique(rows)], np.float32)

    def _scores(self, positions: NDArray[np.int64], query: Vectors) -> NDArray[np.float64]:
        # In float64, row by row: equal vectors get equal scores whatever stands beside them.
        rows = self._vectors[positions]
        if self._distance == "cosine":
            rows, query = normalised(rows), normalised(query[np.newaxis])[0]
        wide, asked = rows.astype(np.float64), query.astype(np.float64)
        scores: NDArray[np.float64] = np.einsum("ij,j->i", wide, asked)
        return -np.square(wide - asked).sum(axis=1) if self._distance == "squared_l2" else scores


def build_index(
    base: Path,
    name: str,
    part: IndexPart,
    queries: Vectors,
    run: Run = run_here,
    once: Once = always,
    *,
    representative: bool = True,
) -> Index:
    """Builds, measures and writes one index. Vectors stay in their file, but for those of brute force.

    Recall is measured on the index as it was written and loaded again. Settings are tried on the same queries, one
    search at a time, as a service runs them; relative costs are medians of their times over those of exact search.

    Args:
      base: directory of the bundle that is being written; holds `indexes/<name>/vectors.bin`.
      name: of the index.
      part: what the recipe says of it.
      queries: [q, dim] float32: what the query tower gave for examples; up to `part.recall.queries` are taken, evenly.
      run: what encodes blocks of vectors, perhaps several at a time.
      once: is given the directory of each partition, relative to `base`.
      representative: whether the examples are real; on invented ones recall is measured, but stops nothing.
    Returns:
      The index' entry in the manifest.
    Raises:
      UsageError: a parameter is unknown or does not belong to the kind.
      NotConvertible: ScaNN cannot build from these vectors and parameters, or the queries are unfit.
      VerificationFailed: no setting reaches the recall asked for.
      DestinationError: the files cannot be written.
    """
    vectors, directory = (
        _opened(base / paths.index_vectors(name), name, queries),
        paths.index_directory(name),
    )
    (kind, parameters), ranges = (
        choose(part, name, len(vectors)),
        partition_rows(len(vectors), part.partitions),
    )
    places = paths.index_partitions(directory, len(ranges))
    directories = [base / place for place in places]
    try:
        _remove_others(base / directory, directories)
        for at in reversed(range(len(ranges))):  # the smallest first: it fails first
            rows = VectorFile(vectors.path, vectors.shape[1], ranges[at])
            once(
                places[at],
                partial(_build_files, rows, part.distance, kind, parameters, directories[at], run),
            )
        exact = ExactAnswers(vectors, part, queries)
    except (InvalidIndex, InvalidInput) as problem:
        raise NotConvertible(f"index {name!r}: {problem}") from problem
    except OSError as problem:
        raise DestinationError(
            f"index {name!r} cannot be written: {problem}; free some space, then run again"
        ) from problem
    try:
        points, best, recall = _settled(
            directories, vectors, exact, part, parameters, name, representative
        )
    except VerificationFailed:
        shutil.rmtree(base / directory, ignore_errors=True)
        raise
    return Index(
        corpus=part.corpus,
        query_tower=part.query_tower,
        candidate_tower=part.candidate_tower,
        kind=kind,
        distance=part.distance,
        dim=vectors.shape[1],
        directory=directory,
        partitions=len(ranges),
        vectors=paths.index_vectors(name),
        parameters=parameters | best.parameters,
        recall=_recall(recall, exact, part, part.recall.value, representative),
        curve=tuple(sorted(points, key=lambda point: point.relative_cost)),
    )


def _build_files(
    rows: VectorFile,
    distance: Distance,
    kind: Kind,
    parameters: dict[str, Any],
    directory: Path,
    run: Run,
) -> None:
    shutil.rmtree(
        directory, ignore_errors=True
    )  # else what an interrupted run left is taken for a part of this index
    build_files(rows, distance, kind, parameters, directory, run)


def _settled(
    directories: Sequence[Path],
    vectors: VectorFile,
    exact: ExactAnswers,
    part: IndexPart,
    parameters: dict[str, Any],
    name: str,
    representative: bool,
) -> tuple[list[CostPoint], CostPoint, float]:
    """Measures settings and writes the best; returns all, the best, and the recall of the index as it is written.

    Raises:
      VerificationFailed: no setting reaches the recall asked for.
    """
    points = _curve(_loaded(directories, part.distance, vectors, name), exact, part, parameters)
    best = _cheapest(points, part)
    if representative and best.recall < part.recall.value:
        raise VerificationFailed(
            f"index {name!r}: recall@{part.recall.k} is {best.recall:.4f} at best (with {best.parameters}), the "
            f"recipe asks for {part.recall.value}; lower indexes.{name}.recall.value, raise parameters.reorder or "
            "leave leaves_to_search and reorder to be chosen, or set kind = 'brute_force'"
        )
    for each in directories:
        settle(each, **best.parameters)
    recall, _ = exact.measure(_loaded(directories, part.distance, vectors, name), {})
    if representative and recall < part.recall.value:
        raise VerificationFailed(
            f"index {name!r}: recall@{part.recall.k} is {recall:.4f} once written, {best.recall:.4f} before; "
            "export the index again"
        )
    return points, best, recall


def recall_of_tables(
    base: Path,
    name: str,
    part: IndexPart,
    written: Index,
    asked: Vectors,
    trained: Vectors,
    path: Path,
) -> Recall:
    """Measures a written index against exact search over what the checkpoint's own rows would have given.

    Args:
      base: directory of the bundle that is being written.
      name: of the index.
      part: what the recipe says of it.
      written: the index' entry in the manifest.
      asked: [q, dim] queries as the service will ask them, made of converted rows.
      trained: [q, dim] the same queries, made of the checkpoint's own rows.
      path: of the candidates' vectors, made of the checkpoint's own rows.
    Raises:
      VerificationFailed: it is less than `part.recall.of_tables`.
    """
    vectors = _opened(path, name, trained)
    exact = ExactAnswers(vectors, part, trained)
    directories = [base / each for each in written.directories]
    recall, _ = exact.measure(_loaded(directories, written.distance, vectors, name), {}, asked)
    wanted = part.recall.of_tables
    if wanted is not None and recall < wanted:
        raise VerificationFailed(
            f"index {name!r}: recall@{part.recall.k} is {recall:.4f} against exact search over vectors made of the "
            f"checkpoint's own rows, the recipe asks for {wanted}; lower indexes.{name}.recall.of_tables, or give the "
            "tables a dtype that loses less"
        )
    return _recall(recall, exact, part, wanted or 0.0)


def choose(part: IndexPart, name: str, size: int) -> tuple[Kind, dict[str, Any]]:
    """Picks the kind of index and what it is trained with, each partition alike.

    Raises:
      UsageError: a parameter is unknown or does not belong to the kind, or there are more partitions than candidates.
    """
    if part.partitions > size:
        raise UsageError(
            f"indexes.{name}.partitions is {part.partitions}; there are only {size} candidates"
        )
    ranges = partition_rows(size, part.partitions)
    largest, smallest = ranges[0].rows, ranges[-1].rows
    unknown = sorted(set(part.parameters) - set(TREE_PARAMETERS))
    if unknown:
        raise UsageError(
            f"indexes.{name}.parameters: unknown key {unknown[0]!r}; known: {', '.join(TREE_PARAMETERS)}"
        )
    automatic: Kind = "brute_force" if largest < BRUTE_FORCE_BELOW else "tree_ah"
    kind = automatic if part.kind == "auto" else part.kind
    if kind == "brute_force":
        if part.parameters:
            raise UsageError(
                f"indexes.{name}.parameters are of a tree, but {largest} candidates are searched by brute force; "
                "leave them out or set kind = 'tree_ah'"
            )
        return kind, {}
    leaves = part.parameters.get("num_leaves", min(max(1, round(math.sqrt(largest))), smallest))
    chosen = {
        "num_leaves": leaves,
        "leaves_to_search": 1,
        "dimensions_per_block": 2,
        "reorder": part.recall.k,
    }
    return kind, chosen | part.parameters


def wilson_low(share: float, queries: int) -> float:
    """Returns the lower end of the 95 % Wilson interval of a share.

    The neighbors of one query are found or missed together, so queries are counted, not neighbors: the interval is
    never too narrow. Source: Wilson, JASA 22 (1927), p. 209.
    """
    square = _Z95 * _Z95
    middle = share + square / (2 * queries)
    spread = _Z95 * math.sqrt(share * (1 - share) / queries + square / (4 * queries * queries))
    return max(0.0, (middle - spread) / (1 + square / queries))


def _recall(
    value: float, exact: ExactAnswers, part: IndexPart, target: float, real: bool = True
) -> Recall:
    queries = len(exact.queries)
    low = wilson_low(value, queries)
    return Recall(
        k=part.recall.k, value=value, low=low, queries=queries, target=target, representative=real
    )


def _opened(path: Path, name: str, queries: Vectors) -> VectorFile:
    if queries.ndim != 2 or not len(queries):
        raise NotConvertible(
            f"index {name!r}: queries have shape {list(queries.shape)}; [q, dim] was expected, q >= 1"
        )
    try:
        vectors = VectorFile(path, queries.shape[1])
    except OSError as problem:
        raise NotConvertible(f"index {name!r}: vectors cannot be read: {problem}") from problem
    except InvalidInput as problem:
        raise NotConvertible(
            f"index {name!r}: {problem}, which queries have; both towers must end in the same dim"
        ) from problem
    if not len(vectors):
        raise NotConvertible(f"index {name!r}: vectors cannot be read: {path.name} is empty")
    return vectors


def _curve(
    index: ScannIndex, exact: ExactAnswers, part: IndexPart, parameters: dict[str, Any]
) -> list[CostPoint]:
    """Measures settings by rising cost, and some beyond the first leaves that reach the target.

    More leaves with less reordering may be cheaper.
    """
    points: list[CostPoint] = []
    beyond = 0
    for level in _levels(part, parameters, index.size):
        for setting in level:
            recall, search_s = exact.measure(index, setting)
            points.append(
                CostPoint(
                    parameters=setting, recall=recall, relative_cost=search_s / exact.search_s
                )
            )
        beyond += any(point.recall >= part.recall.value for point in points)
        if beyond > _LEVELS_BEYOND_TARGET:
            break
    return points


def _levels(part: IndexPart, parameters: dict[str, Any], size: int) -> list[list[Setting]]:
    # Of rising cost: each has one number of leaves, and the reorderings to try with it.
    if not parameters:
        return [[{}]]
    leaves = {math.ceil(share * parameters["num_leaves"]) for share in _LEAF_SHARES}
    reorders = {min(times * part.recall.k, size) for times in _REORDER_PER_NEIGHBOR}
    leaves = (
        {part.parameters["leaves_to_search"]} if "leaves_to_search" in part.parameters else leaves
    )
    reorders = {part.parameters["reorder"]} if "reorder" in part.parameters else reorders
    return [
        [{"leaves_to_search": count, "reorder": each} for each in sorted(reorders)]
        for count in sorted(leaves)
    ]


def _cheapest(points: Sequence[CostPoint], part: IndexPart) -> CostPoint:
    """Returns the cheapest that reaches the recall asked for, or that of the highest recall."""
    reaching = [point for point in points if point.recall >= part.recall.value]
    return (
        min(reaching, key=lambda point: point.relative_cost)
        if reaching
        else max(points, key=lambda p: p.recall)
    )


def _remove_others(directory: Path, partitions: Sequence[Path]) -> None:
    """Removes what another number of partitions left."""
    for left in set(directory.glob("*")).difference(partitions) if len(partitions) > 1 else ():
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _loaded(
    directories: Sequence[Path], distance: Distance, vectors: VectorFile, name: str
) -> ScannIndex:
    try:
        return load_index(directories, distance, vectors.mapped)
    except IndexUnreadable as problem:
        raise DestinationError(
            f"index {name!r} was not written whole: {problem}; is the disk full?"
        ) from problem
