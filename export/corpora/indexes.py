"""Builds indexes of candidate vectors, each with the cheapest setting whose recall against
exact search reaches the target.
"""

from __future__ import annotations

import math
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.format import paths
from bundle.format.indexes import Codes, Engine, RecallCurve
from bundle.format.manifest import Corpus, CostPoint, Distance, Index
from bundle.format.search_costs import SearchCosts
from bundle.storage.staging import Staging
from bundle.tables.segments import RowRange
from export.corpora.cost_process import CostTask, measure_in_process
from export.corpora.recall import (
    ExactNeighbors,
    Measured,
    QuerySplit,
    Setting,
    curve_of,
    load_written,
    open_vectors,
    recall_entry,
    sample_rows,
    shares_by_depth,
)
from export.corpora.search_costs import COST_QUERIES_MAX
from export.errors import DestinationError, NotConvertible, UsageError, VerificationFailed
from export.recipe.schema import IndexSection
from export.steps import Step, Written
from runtime.candidate_index import TREE_PARAMETERS, CandidateIndex, Kind, check_parameters
from runtime.engines import default_engine, is_installed, open_engine
from runtime.errors import InvalidIndex, InvalidInput
from runtime.index_files import Run, run_here
from runtime.partitions import partition_rows
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]

SEARCH_PARAMETERS = ("leaves_to_search", "reorder")
"""Parameters of a tree that only searches depend on."""
BRUTE_FORCE_BELOW = 20_000
"""The number of candidates below which exact search is the default. Source: google-research/scann,
docs/algorithms.md, which recommends about as many leaves as the square root of the number.
"""
_LEAF_SHARES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.6, 1.0)
"""Shares of a tree's leaves that are tried as the number of leaves to search, cheapest first."""
_REORDER_PER_NEIGHBOR = (2, 5, 15, 45)
"""Numbers of reordered candidates that are tried, for each neighbor of the recipe's k."""
_LEVELS_BEYOND_TARGET = 2
"""Numbers of leaves that are tried after the first one that reaches the target."""
_LARGER_K = (20, 50, 100, 200, 500, 1000)
"""Larger k than that of the recipe at which the recall of a tree is measured."""
_POOLS_PER_NEIGHBOR = (1.2, 1.7, 2.5, 3.5, 5, 7, 10, 15, 22, 33, 45)
"""Numbers of reordered candidates at which it is measured, for each neighbor."""
_POOL_PER_LARGEST_K = 10
"""Maximum number of reordered candidates for each neighbor of the largest k. Each is looked up for
each query and number of leaves.
"""


class IndexChoice(NamedTuple):
    """What is built of an index.

    Attributes:
      engine: The engine of the index.
      kind: The kind of the index.
      parameters: The parameters that each of its partitions is trained with.
    """

    engine: Engine
    kind: Kind
    parameters: dict[str, Any]


def build_index(
    base: Path,
    name: str,
    section: IndexSection,
    queries: Vectors,
    run: Run = run_here,
    *,
    stage: Staging | None = None,
    representative: bool = True,
    vectors_file: str = "",
    coded: bool = False,
) -> Index:
    """Builds the partitions of one index, chooses its setting and measures its recall.

    Vectors stay in their file, except the vectors of exact search.

    Args:
      base: The directory of the bundle that is being written; holds `indexes/<name>/vectors.bin`.
      name: The name of the index.
      section: The section of the recipe.
      queries: [q, dim] float32, the query tower's results for examples; up to
        `section.recall.queries` of them are used, evenly.
      run: Encodes blocks of vectors, perhaps several at a time.
      stage: The staging directory at `base`, whose journal knows the partitions that an earlier run
        built; None: all are built.
      representative: Whether the examples are real; on synthetic ones recall is measured, but stops
        nothing.
      vectors_file: The file of the vectors of an index over the same candidates, relative to
        `base`; "": the index has its own file.
      coded: Whether codes of the vectors were written.

    Returns:
      The index's entry in the manifest.

    Raises:
      UsageError: A parameter is unknown or does not belong to the kind.
      NotConvertible: The engine cannot build from these vectors and parameters, or the queries are
        unfit.
      VerificationFailed: The required recall is not reached. The partitions stay as they are.
      DestinationError: The files cannot be written.
    """
    vectors_file = vectors_file or paths.index_vectors(name)
    vectors = open_vectors(base / vectors_file, name, queries)
    choice = choose(section, name, len(vectors))
    engine, kind, parameters = choice
    directory = paths.index_directory(name, engine)
    row_ranges = partition_rows(len(vectors), section.partitions)
    partitions = paths.index_partitions(directory, len(row_ranges))
    directories = [base / partition for partition in partitions]
    measured_k = _measured_k(kind, section.recall.k, len(vectors))
    try:
        _remove_others(base / directory, directories)
        # The smallest partition, which is the last one, comes first: it fails first.
        for partition, rows in reversed([*zip(partitions, row_ranges, strict=True)]):
            _build_partition(base, vectors, section.distance, choice, partition, rows, run, stage)
        sampled = queries[sample_rows(len(queries), section.recall.queries)]
        exact = ExactNeighbors(
            vectors, section.distance, section.recall.k, sampled, k_max=max(measured_k, default=0)
        )
    except (InvalidIndex, InvalidInput) as problem:
        raise NotConvertible(f"index {name!r}: {problem}") from problem
    except OSError as problem:
        raise DestinationError(
            f"index {name!r} cannot be written: {problem}; free some space, then run again"
        ) from problem

    # The setting is the cheapest one that reaches the recall on one half of the queries; the other
    # half, which did not choose it, judges it.
    levels = _levels(section, parameters, len(vectors))
    split = QuerySplit.of(np.arange(len(sampled)), has_choice=sum(map(len, levels)) > 1)
    index = load_written(engine, directories, section.distance, vectors, name)
    trials = _try(index, exact, split, levels, section.recall.value)
    best = _choose(trials, section.recall.value)
    judging = best.judging
    if representative:
        _check_recall(name, section, judging, best, split)

    if best.setting:
        # The recall is measured again on the index as a service loads it. The loaded one is dropped
        # first: two of them may not fit into memory.
        del index
        for partition_directory in directories:
            open_engine(engine).set_search_parameters(partition_directory, **best.setting)
        index = load_written(engine, directories, section.distance, vectors, name)
        judging = exact.measure(index, {}).of(split.judging)
        if representative:
            _check_recall(name, section, judging, best, split)

    exact_search_s = exact.search_s()
    points = [trial.point(exact_search_s) for trial in trials]
    parameters |= best.setting
    costs = None
    curves: tuple[RecallCurve, ...] = ()
    if kind == "tree_ah":
        leaves = sorted({math.ceil(share * parameters["num_leaves"]) for share in _LEAF_SHARES})
        pools = _pools(measured_k, len(vectors))
        shares = shares_by_depth(index, exact, leaves, pools, measured_k)
        # The process that measures the costs loads the index, too.
        del index
        costs = _costs(
            base, name, section.distance, choice, directories, vectors, exact.queries, coded
        )
        curves = _curves(shares, measured_k, leaves, pools, costs, len(vectors))
    codes = None
    if coded:
        codes = Codes.of(name)
    return Index(
        corpus=section.corpus,
        query_tower=section.query_tower,
        candidate_tower=section.candidate_tower,
        engine=engine,
        kind=kind,
        distance=section.distance,
        dim=vectors.shape[1],
        directory=directory,
        partitions=len(row_ranges),
        vectors=vectors_file,
        parameters=parameters,
        recall=recall_entry(
            judging, section.recall.k, section.recall.value, split.chosen_on, representative
        ),
        curve=tuple(sorted(points, key=lambda point: point.relative_cost)),
        recall_curves=curves,
        codes=codes,
        costs=costs,
    )


def note_of_costs(name: str, written: Index, size: int) -> str:
    """Returns a note on the search costs of an index; "" if there is nothing to note.

    Args:
      name: The name of the index.
      written: The index's entry in the manifest.
      size: The number of candidates.
    """
    # Smaller trees always have typical costs, so this is nothing that the operator could change.
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


def partition_step(partition: str) -> str:
    """Returns the name of the step that built a partition.

    The directory's own name is taken: a single partition lies in that of the index.
    """
    return f"built {partition}"


def choose(section: IndexSection, name: str, size: int) -> IndexChoice:
    """Chooses the engine and the kind of an index, and the parameters that each of its partitions
    is trained with.

    Raises:
      UsageError: A parameter is unknown or does not belong to the kind, the engine is not
        installed, or there are more partitions than candidates.
    """
    if section.partitions > size:
        raise UsageError(
            f"indexes.{name}.partitions is {section.partitions}; there are only {size} candidates"
        )
    ranges = partition_rows(size, section.partitions)
    largest = ranges[0].rows
    smallest = ranges[-1].rows
    unknown_keys = sorted(set(section.parameters) - set(TREE_PARAMETERS))
    if unknown_keys:
        raise UsageError(
            f"indexes.{name}.parameters: unknown key {unknown_keys[0]!r}; known: "
            f"{', '.join(TREE_PARAMETERS)}"
        )
    if section.engine == "auto":
        engine = default_engine()
    elif is_installed(section.engine):
        engine = section.engine
    else:
        raise UsageError(
            f"indexes.{name}.engine is {section.engine!r}, which is not installed; install the "
            f"package {section.engine}, or leave engine out"
        )
    kind: Kind
    if section.kind != "auto":
        kind = section.kind
    elif largest < BRUTE_FORCE_BELOW:
        kind = "brute_force"
    else:
        kind = "tree_ah"
    if kind == "brute_force":
        if section.parameters:
            raise UsageError(
                f"indexes.{name}.parameters are of a tree, but {largest} candidates are searched "
                "by exact search; leave them out or set kind = 'tree_ah'"
            )
        return IndexChoice(engine, kind, {})
    # All partitions have as many leaves, and none may have fewer vectors than leaves.
    leaves = section.parameters.get("num_leaves", min(max(1, round(math.sqrt(largest))), smallest))
    # The parameters of searches are provisional until a setting is measured and chosen.
    chosen = {
        "num_leaves": leaves,
        "leaves_to_search": 1,
        "dimensions_per_block": 2,
        "reorder": section.recall.k,
    }
    return IndexChoice(engine, kind, chosen | section.parameters)


def has_codes(kind: Kind, corpus: Corpus) -> bool:
    """Returns whether searches of an index use codes: only those with a filter do."""
    return kind == "tree_ah" and bool(corpus.filters)


@dataclass(frozen=True)
class _Trial:
    """A setting that was tried.

    Attributes:
      setting: The parameters of its searches.
      measured: The recall on all queries.
      choosing, judging: The recall on the queries that choose, and on those that judge.
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
    index: CandidateIndex,
    exact: ExactNeighbors,
    split: QuerySplit,
    levels: Iterable[Sequence[Setting]],
    target: float,
) -> list[_Trial]:
    """Measures settings by rising cost, and some beyond the first leaves that reach the target.

    More leaves with less reordering may be cheaper.
    """
    trials: list[_Trial] = []
    levels_beyond = 0
    for level in levels:
        for setting in level:
            measured = exact.measure(index, setting)
            choosing = measured.of(split.choosing)
            judging = measured.of(split.judging)
            trials.append(_Trial(setting, measured, choosing, judging))
        if any(trial.reaches(target) for trial in trials):
            levels_beyond += 1
        if levels_beyond > _LEVELS_BEYOND_TARGET:
            break
    return trials


def _choose(trials: Sequence[_Trial], target: float) -> _Trial:
    """Returns the cheapest setting that reaches the target on the queries that choose, unless those
    that judge reject it; if none is left, the best of those rejected, or else of all.
    """
    reaching = [trial for trial in trials if trial.choosing.recall >= target]
    confirmed = [trial for trial in reaching if trial.reaches(target)]
    if confirmed:
        return min(confirmed, key=lambda trial: trial.measured.search_s)
    if reaching:
        return max(reaching, key=lambda trial: trial.judging.recall)
    return max(trials, key=lambda trial: trial.choosing.recall)


def _measured_k(kind: Kind, k: int, size: int) -> list[int]:
    """Returns the k at which the recall of searches is measured by their depth: that of the recipe,
    and larger ones.
    """
    if kind == "brute_force":
        return []
    # As many neighbors are at most half of the candidates; beyond that, exact search is cheaper.
    return [k, *(larger_k for larger_k in _LARGER_K if k < larger_k <= size // 2)]


def _pools(ks: Sequence[int], size: int) -> list[int]:
    """Returns the numbers of reordered candidates at which recall is measured."""
    pools = {math.ceil(factor * k) for k in ks for factor in _POOLS_PER_NEIGHBOR}
    pool_max = _POOL_PER_LARGEST_K * max(ks)
    return sorted({min(pool, pool_max, size) for pool in pools})


def _curves(
    shares: NDArray[np.float32],
    ks: Sequence[int],
    leaves: Sequence[int],
    pools: Sequence[int],
    costs: SearchCosts,
    size: int,
) -> tuple[RecallCurve, ...]:
    """Returns the depths that pay for each k, of [leaves, pools, ks, queries] shares."""

    def cost(leaves_to_search: int, pool: int) -> float:
        return costs.of_tree(size * leaves_to_search / leaves[-1], pool, pool)

    curves = []
    for column, k in enumerate(ks):
        # Fewer candidates than are wanted are never reordered.
        first = bisect_left(pools, min(size, k))
        curves.append(curve_of(k, shares[:, first:, column], leaves, pools[first:], cost))
    return tuple(curves)


def _costs(
    base: Path,
    name: str,
    distance: Distance,
    choice: IndexChoice,
    directories: Sequence[Path],
    vectors: VectorFile,
    queries: Vectors,
    coded: bool,
) -> SearchCosts:
    """Returns the costs of the parts of searches of a tree."""
    size, dim = vectors.shape
    if size < BRUTE_FORCE_BELOW:
        # Every search is so short that its parts are lost in noise.
        return SearchCosts.typical(dim, coded=coded)
    codes = None
    if coded:
        written = Codes.of(name)
        codes = base / written.file, base / written.codebook
    task = CostTask(
        name=name,
        engine=choice.engine,
        distance=distance,
        directories=tuple(directories),
        vectors=vectors.path,
        size=size,
        dim=dim,
        codes=codes,
        queries=queries[:COST_QUERIES_MAX].tolist(),
        leaves=choice.parameters["num_leaves"],
    )
    return measure_in_process(task)


def _check_recall(
    name: str, section: IndexSection, measured: Measured, best: _Trial, split: QuerySplit
) -> None:
    target = section.recall.value
    if measured.recall >= target:
        return
    chosen = ""
    if split.chosen_on:
        chosen = (
            f", chosen on {split.chosen_on} other queries, where it is {best.choosing.recall:.4f}"
        )
    raise VerificationFailed(
        f"index {name!r}: recall@{section.recall.k} is {measured.recall:.4f} on "
        f"{measured.shares.size} queries (with {best.setting}{chosen}), the recipe requires "
        f"{target}; lower indexes.{name}.recall.value, raise parameters.reorder or leave "
        "leaves_to_search and reorder to be chosen, or set kind = 'brute_force'"
    )


def _build_partition(
    base: Path,
    vectors: VectorFile,
    distance: Distance,
    choice: IndexChoice,
    partition: str,
    rows: RowRange,
    run: Run,
    stage: Staging | None,
) -> None:
    """Builds one partition, unless an earlier run did."""
    check_parameters(choice.kind, choice.parameters, rows.rows)
    # The same files are built whatever searches will use, so that another choice keeps them.
    parameters = dict(choice.parameters)
    for key in SEARCH_PARAMETERS:
        if key in parameters:
            parameters[key] = 1
    built = choice._replace(parameters=parameters)
    file = Written(vectors.path.relative_to(base).as_posix())
    dim = vectors.shape[1]
    if stage is None:
        _build(base, partition, file, dim, distance, built, rows, run=run)
        return
    # The setting that is chosen is written to the configuration.
    engine = open_engine(choice.engine)
    config = f"{partition}/{engine.config}"
    step = Step(partition_step(partition), ("numpy", engine.library), partition, rewritten=config)
    config_hex = step.run(stage, _build, partition, file, dim, distance, built, rows, run=run)
    (base / config).write_bytes(bytes.fromhex(config_hex))


def _build(
    base: Path,
    partition: str,
    vectors: Written,
    dim: int,
    distance: Distance,
    choice: IndexChoice,
    rows: RowRange,
    run: Run,
) -> str:
    """Builds a partition, and returns its configuration in hexadecimal."""
    # Files that an interrupted run left would be taken for a part of this index.
    shutil.rmtree(base / partition, ignore_errors=True)
    partition_vectors = VectorFile(base / vectors.path, dim, rows)
    engine = open_engine(choice.engine)
    directory = base / partition
    engine.build_files(partition_vectors, distance, choice.kind, choice.parameters, directory, run)
    return (directory / engine.config).read_bytes().hex()


def _levels(section: IndexSection, parameters: dict[str, Any], size: int) -> list[list[Setting]]:
    """Returns the settings to try, by rising cost: each level has one number of leaves, and the
    numbers of reordered candidates to try with it.
    """
    # Exact search has no settings to choose from.
    if not parameters:
        return [[{}]]
    # Sets, since several shares of a small tree are the same number of leaves.
    leaves = {math.ceil(share * parameters["num_leaves"]) for share in _LEAF_SHARES}
    if "leaves_to_search" in section.parameters:
        leaves = {section.parameters["leaves_to_search"]}
    reorders = {min(times * section.recall.k, size) for times in _REORDER_PER_NEIGHBOR}
    if "reorder" in section.parameters:
        reorders = {section.parameters["reorder"]}
    return [
        [{"leaves_to_search": count, "reorder": reorder} for reorder in sorted(reorders)]
        for count in sorted(leaves)
    ]


def _remove_others(directory: Path, partitions: Sequence[Path]) -> None:
    """Removes the files that a run with another number of partitions left."""
    if len(partitions) == 1:
        # A single partition lies in the index's own directory, and is removed before it is built.
        return
    for leftover in set(directory.glob("*")).difference(partitions):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
