"""Candidate vectors -> ScaNN index at the cheapest setting whose recall, against exact search,
reaches the target.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format import paths
from bundle.format.indexes import Codes, DepthPoint
from bundle.format.manifest import Corpus, CostPoint, Distance, Index
from bundle.format.search_costs import SearchCosts
from bundle.tables.segments import RowRange
from export.corpora.cost_process import CostTask, measure_in_process
from export.corpora.recall import (
    ExactNeighbors,
    Measured,
    QuerySplit,
    Setting,
    load_written,
    open_vectors,
    recall_entry,
    sample_rows,
)
from export.corpora.search_costs import COST_QUERIES_MAX
from export.errors import DestinationError, NotConvertible, UsageError, VerificationFailed
from export.recipe.schema import IndexSection
from runtime.errors import InvalidIndex, InvalidInput
from runtime.partitions import partition_rows
from runtime.scann import TREE_PARAMETERS, Kind, ScannIndex, check_parameters, settle
from runtime.scann_build import Run, build_files, run_here
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
Once = Callable[[str, Any, Callable[[], None]], None]
"""Has what makes a directory done, unless an earlier run did, from the same inputs."""

SEARCH_PARAMETERS = ("leaves_to_search", "reorder")
"""Parameters of a tree that only searches depend on."""
BRUTE_FORCE_BELOW = 20_000
"""Source: google-research/scann docs/algorithms.md: below 20 000 points exact search, leaves about
the square root.
"""
_LEAF_SHARES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.6, 1.0)
_REORDER_PER_NEIGHBOR = (2, 5, 15, 45)
_LEVELS_BEYOND_TARGET = 2
_DEPTHS = (100, 1000)
"""Other k at which the recall of a tree is measured."""
_GROWTHS = ((0.5, 0.75), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (1.0, 1.25))
"""How the leaves and the reordered candidates may grow with k, as powers, by rising cost."""


def always(_: str, __: Any, make: Callable[[], None]) -> None:
    """Does it."""
    make()


def build_index(
    base: Path,
    name: str,
    part: IndexSection,
    queries: Vectors,
    run: Run = run_here,
    once: Once = always,
    *,
    representative: bool = True,
    vectors_file: str = "",
    coded: bool = False,
) -> Index:
    """Builds the partitions of one index, chooses its setting and measures its recall.

    Vectors stay in their file, except the vectors of exact search.

    Args:
      base: Directory of the bundle that is being written; holds `indexes/<name>/vectors.bin`.
      name: The name of the index.
      part: What the recipe says of it.
      queries: [q, dim] float32: what the query tower gave for examples; up to `part.recall.queries`
        are taken, evenly.
      run: What encodes blocks of vectors, perhaps several at a time.
      once: Is given the directory of each partition, relative to `base`, and what its content
        depends on beside the vectors: neither queries nor the recall that is asked for.
      representative: Whether the examples are real; on synthetic ones recall is measured, but stops
        nothing.
      vectors_file: Relative to `base`, of an index over the same vectors; empty: its own.
      coded: Whether codes of the vectors were written.
    Returns:
      The index's entry in the manifest.
    Raises:
      UsageError: A parameter is unknown or does not belong to the kind.
      NotConvertible: ScaNN cannot build from these vectors and parameters, or the queries are
        unfit.
      VerificationFailed: The recall asked for is not reached. The partitions stay as they are.
      DestinationError: The files cannot be written.
    """
    vectors_file = vectors_file or paths.index_vectors(name)
    vectors = open_vectors(base / vectors_file, name, queries)
    kind, parameters = choose(part, name, len(vectors))
    ranges = partition_rows(len(vectors), part.partitions)
    directory = paths.index_directory(name)
    places = paths.index_partitions(directory, len(ranges))
    directories = [base / place for place in places]
    try:
        _remove_others(base / directory, directories)
        for place, rows in reversed(list(zip(places, ranges, strict=True))):
            # The smallest, which is the last, first: it fails first.
            _build_partition(base, vectors, part.distance, kind, parameters, place, rows, run, once)
        sampled = queries[sample_rows(len(queries), part.recall.queries)]
        deeper = _deeper(kind, part, len(vectors))
        exact = ExactNeighbors(
            vectors, part.distance, part.recall.k, sampled, k_max=max(deeper, default=0)
        )
    except (InvalidIndex, InvalidInput) as problem:
        raise NotConvertible(f"index {name!r}: {problem}") from problem
    except OSError as problem:
        raise DestinationError(
            f"index {name!r} cannot be written: {problem}; free some space, then run again"
        ) from problem

    levels = _levels(part, parameters, len(vectors))
    split = QuerySplit.of(np.arange(len(sampled)), has_choice=sum(map(len, levels)) > 1)
    index = load_written(directories, part.distance, vectors, name)
    tried = _try(index, exact, split, levels, part.recall.value)
    best = _choose(tried, part.recall.value)
    if representative:
        _check_recall(name, part, best.judging, best, split)
    judging = best.judging

    if best.setting:
        del index  # two would be in memory
        for each in directories:
            settle(each, **best.setting)
        index = load_written(directories, part.distance, vectors, name)
        judging = exact.measure(index, {}).of(split.judging)
        if representative:
            _check_recall(name, part, judging, best, split)

    search_s = exact.search_s()
    points = [trial.point(search_s) for trial in tried]
    parameters |= best.setting
    depths = _measure_depths(index, exact, part, parameters, deeper)
    del index  # two would be in memory
    costs = None
    if kind == "tree_ah":
        costs = _costs(
            base,
            name,
            part.distance,
            directories,
            vectors,
            exact.queries,
            parameters["num_leaves"],
            coded,
        )
    return Index(
        corpus=part.corpus,
        query_tower=part.query_tower,
        candidate_tower=part.candidate_tower,
        kind=kind,
        distance=part.distance,
        dim=vectors.shape[1],
        directory=directory,
        partitions=len(ranges),
        vectors=vectors_file,
        parameters=parameters,
        recall=recall_entry(
            judging, part.recall.k, part.recall.value, split.chosen_on, representative
        ),
        curve=tuple(sorted(points, key=lambda point: point.relative_cost)),
        depths=depths,
        codes=Codes.of(name) if coded else None,
        costs=costs,
    )


def note_of_costs(name: str, written: Index, size: int) -> str:
    """Returns what an operator must know of the search costs of an index; empty: nothing.

    Args:
      name: The name of the index.
      written: The index's entry in the manifest.
      size: The number of candidates.
    """
    if written.costs is None or written.costs.measured or size < BRUTE_FORCE_BELOW:
        return ""
    return (
        f"index {name!r}: this machine was too busy to measure what searches cost, so services "
        "choose by typical costs; filtered searches may take longer until the model is exported on "
        "a machine that is less busy"
    )


def index_steps(index: Index) -> tuple[str, ...]:
    """Returns the names of the steps that made an index from its vectors."""
    steps = [*map(partition_step, index.directories), index.directory]
    if index.codes is not None:
        steps.append(str(PurePosixPath(index.codes.file).parent))
    return tuple(steps)


def partition_step(place: str) -> str:
    """Returns the name of the step that built a partition.

    The directory's own name is taken: a single partition lies in that of the index.
    """
    return f"built {place}"


def choose(part: IndexSection, name: str, size: int) -> tuple[Kind, dict[str, Any]]:
    """Picks the kind of index and what it is trained with, each partition alike.

    Raises:
      UsageError: A parameter is unknown or does not belong to the kind, or there are more
        partitions than candidates.
    """
    if part.partitions > size:
        raise UsageError(
            f"indexes.{name}.partitions is {part.partitions}; there are only {size} candidates"
        )
    ranges = partition_rows(size, part.partitions)
    largest = ranges[0].rows
    smallest = ranges[-1].rows
    unknown = sorted(set(part.parameters) - set(TREE_PARAMETERS))
    if unknown:
        raise UsageError(
            f"indexes.{name}.parameters: unknown key {unknown[0]!r}; known: "
            f"{', '.join(TREE_PARAMETERS)}"
        )
    automatic: Kind = "brute_force" if largest < BRUTE_FORCE_BELOW else "tree_ah"
    kind = automatic if part.kind == "auto" else part.kind
    if kind == "brute_force":
        if part.parameters:
            raise UsageError(
                f"indexes.{name}.parameters are of a tree, but {largest} candidates are searched "
                "by exact search; leave them out or set kind = 'tree_ah'"
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


def has_codes(kind: Kind, corpus: Corpus) -> bool:
    """Returns whether searches of an index use codes: only those with a filter do."""
    return kind == "tree_ah" and bool(corpus.filters)


@dataclass(frozen=True)
class _Trial:
    """A setting that was tried.

    Attributes:
      measured: On all queries.
      choosing, judging: On the queries that choose, and on those that judge.
    """

    setting: Setting
    measured: Measured
    choosing: Measured
    judging: Measured

    def point(self, exact_search_s: float) -> CostPoint:
        """Returns the point of the curve."""
        return CostPoint(
            parameters=self.setting,
            recall=self.measured.recall,
            relative_cost=self.measured.search_s / exact_search_s,
        )

    def reaches(self, target: float) -> bool:
        """Returns whether it reaches a recall on the queries that choose, and on the others."""
        return min(self.choosing.recall, self.judging.recall) >= target


def _try(
    index: ScannIndex,
    exact: ExactNeighbors,
    split: QuerySplit,
    levels: Iterable[Sequence[Setting]],
    target: float,
) -> list[_Trial]:
    """Measures settings by rising cost, and some beyond the first leaves that reach the target.

    More leaves with less reordering may be cheaper.
    """
    tried: list[_Trial] = []
    beyond = 0
    for level in levels:
        for setting in level:
            measured = exact.measure(index, setting)
            halves = measured.of(split.choosing), measured.of(split.judging)
            tried.append(_Trial(setting, measured, *halves))
        beyond += any(trial.reaches(target) for trial in tried)
        if beyond > _LEVELS_BEYOND_TARGET:
            break
    return tried


def _choose(tried: Sequence[_Trial], target: float) -> _Trial:
    """Returns the cheapest setting that reaches the target on the queries that choose, unless those
    that judge reject it; if none is left, the best of those rejected, or else of all.
    """
    reaching = [trial for trial in tried if trial.choosing.recall >= target]
    confirmed = [trial for trial in reaching if trial.reaches(target)]
    if confirmed:
        return min(confirmed, key=lambda trial: trial.measured.search_s)
    if reaching:
        return max(reaching, key=lambda trial: trial.judging.recall)
    return max(tried, key=lambda trial: trial.choosing.recall)


def _deeper(kind: Kind, part: IndexSection, size: int) -> list[int]:
    """Returns the other k at which recall is measured: beyond that of the recipe, and so few that
    a tree searches less than all candidates.
    """
    if kind == "brute_force":
        return []
    return [k for k in _DEPTHS if part.recall.k < k <= size // 10]


def _measure_depths(
    index: ScannIndex,
    exact: ExactNeighbors,
    part: IndexSection,
    parameters: Mapping[str, Any],
    deeper: Sequence[int],
) -> tuple[DepthPoint, ...]:
    """Finds how deep to search for a larger k: the smallest growth of the setting before that
    reaches the recall, or else the largest.
    """
    depths = []
    k_before = part.recall.k
    leaves_before = parameters.get("leaves_to_search", 0)
    reorder_before = parameters.get("reorder", 0)
    for k in deeper:
        for leaves_power, reorder_power in _GROWTHS:
            leaves = math.ceil(leaves_before * (k / k_before) ** leaves_power)
            leaves = min(leaves, parameters["num_leaves"])
            reorder = math.ceil(reorder_before * (k / k_before) ** reorder_power)
            setting = {"leaves_to_search": leaves, "reorder": reorder}
            recall = exact.measure(index, setting, k=k).recall
            if recall >= part.recall.value:
                break
        depths.append(DepthPoint(k=k, leaves_to_search=leaves, reorder=reorder, recall=recall))
        k_before = k
        leaves_before = leaves
        reorder_before = reorder
    return tuple(depths)


def _costs(
    base: Path,
    name: str,
    distance: Distance,
    directories: Sequence[Path],
    vectors: VectorFile,
    queries: Vectors,
    leaves: int,
    coded: bool,
) -> SearchCosts:
    """Returns what the parts of searches of a tree cost."""
    size, dim = vectors.shape
    if size < BRUTE_FORCE_BELOW:  # every search is so short that the costs are lost in noise
        return SearchCosts.typical(dim, coded=coded)
    codes = None
    if coded:
        written = Codes.of(name)
        codes = base / written.file, base / written.codebook
    task = CostTask(
        name=name,
        distance=distance,
        directories=tuple(directories),
        vectors=vectors.path,
        size=size,
        dim=dim,
        codes=codes,
        queries=queries[:COST_QUERIES_MAX].tolist(),
        leaves=leaves,
    )
    return measure_in_process(task)


def _check_recall(
    name: str, part: IndexSection, measured: Measured, best: _Trial, split: QuerySplit
) -> None:
    target = part.recall.value
    if measured.recall >= target:
        return
    chosen = ""
    if split.chosen_on:
        chosen = (
            f", chosen on {split.chosen_on} other queries, where it is {best.choosing.recall:.4f}"
        )
    raise VerificationFailed(
        f"index {name!r}: recall@{part.recall.k} is {measured.recall:.4f} on "
        f"{measured.shares.size} queries (with {best.setting}{chosen}), the recipe requires "
        f"{target}; lower indexes.{name}.recall.value, raise parameters.reorder or leave "
        "leaves_to_search and reorder to be chosen, or set kind = 'brute_force'"
    )


def _build_partition(
    base: Path,
    vectors: VectorFile,
    distance: Distance,
    kind: Kind,
    parameters: Mapping[str, Any],
    place: str,
    rows: RowRange,
    run: Run,
    once: Once,
) -> None:
    check_parameters(kind, parameters, rows.rows)
    # The same files are built whatever searches will use, so that another choice keeps them.
    built = {key: 1 if key in SEARCH_PARAMETERS else value for key, value in parameters.items()}
    own = VectorFile(vectors.path, vectors.shape[1], rows)

    def make() -> None:
        # Else what an interrupted run left is taken for a part of this index.
        shutil.rmtree(base / place, ignore_errors=True)
        build_files(own, distance, kind, built, base / place, run)

    once(place, (distance, kind, built, rows), make)


def _levels(part: IndexSection, parameters: dict[str, Any], size: int) -> list[list[Setting]]:
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


def _remove_others(directory: Path, partitions: Sequence[Path]) -> None:
    """Removes what another number of partitions left."""
    for left in set(directory.glob("*")).difference(partitions) if len(partitions) > 1 else ():
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()
