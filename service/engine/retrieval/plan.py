"""Plans of retrievals and recommendations: all that is checked of a request, before anything is
computed, and what it resolves to.

The names that a request sends, and which of its fields are set, are its shape. What follows from
these alone is prepared once for all requests of a shape, and kept with the version; a plan binds it
to the numbers and arrays of one request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from bundle.features.columns import Column
from bundle.format.formula import Formula
from runtime.vectors import SEARCHABLE, find_unsearchable
from service.config import ServiceSettings
from service.contract.limits import at_most
from service.contract.messages import (
    K_DEFAULT,
    Ids,
    RecommendationRequest,
    RetrievalRequest,
    SelectionRequest,
    Source,
    Vectors,
    check_offsets,
)
from service.engine import lookup
from service.engine.execution import Execution
from service.engine.ranking import formulas
from service.engine.validation import (
    NUMBER_BYTES,
    SHOWN_CHARS,
    check_attributes,
    check_bytes,
    check_k,
    check_names,
    check_queries,
    check_values,
    choose_index,
    choose_list,
    choose_ranking_tower,
    prepared,
)
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import (
    LoadedList,
    LoadedStore,
    LoadedTower,
    ModelVersion,
    ServedIndex,
    TowerPlan,
)

_CROWDING_TYPES = ("string", "int64", "bool")
"""Types of attributes that crowding may limit: two doubles are hardly ever equal."""
_FORMULA_TYPES = ("int64", "double", "bool")
"""Types of attributes that a formula may take."""
_KINDS = ("index", "ids", "list")
_COUNTS = ("pool_size", "min_count", "max_count")
_NEEDS_INDEX = {
    "diversity": "it compares the vectors of an index",
    "negative_ids": "queries of an index move away from them",
    "explain": "it describes the search of an index",
}
"""Options that need an index among the sources, and why."""
_NO_OPTIONS = Source()
"""What a request that names an index says of it as a source."""


@dataclass(eq=False, slots=True)
class PlannedSource:
    """A source of a request.

    Attributes:
      number: The position among the sources of the request.
      name: The name in the response.
      entry: What the request says of it.
      index: The index whose nearest candidates are taken; None: they come from elsewhere.
      candidates: The list of the bundle whose candidates are taken; None: as above.
    """

    number: int
    name: str
    entry: Source
    index: ServedIndex | None = None
    candidates: LoadedList | None = None


class Ranking(NamedTuple):
    """A tower that orders the candidates of a request.

    Attributes:
      tower: The tower.
      outputs: The outputs of the tower that the score needs.
      formula: Gives the score; None: the result of the tower is it.
      keep: The number of candidates of each context that go on to the next tower; 0: all.
    """

    tower: LoadedTower
    outputs: TowerPlan
    formula: Formula | None
    keep: int = 0


class Selection(NamedTuple):
    """The plan of a request for the k best candidates of n queries.

    Attributes:
      corpus: The corpus of all candidates.
      first_index: The first index: it gives retrieval scores, and the vectors that diversity
        compares. None: no source is an index.
      sources: The sources, in the order of the request.
      has_sources: Whether the request names them, so that the response does, too.
      n: The number of queries, or contexts.
      k: The number of candidates that each wants.
      needs_pool: Whether more candidates are retrieved than are returned, to be ranked, reordered
        or divided into pages.
      inputs: The inputs of contexts that are computed with.
      execution: The batch of the request.
      formula: Gives the score of a retrieval; None: the search does.
      has_queries: Whether the request has sent vectors or ids to search for, and no contexts.
      vectors: These vectors, [v, dim] float32; None: none were sent.
      ranking: How candidates are ranked; None: they are not.
      stage: The cheaper ranking before that; None: there is none.
    """

    model_version: ModelVersion
    request: SelectionRequest
    corpus: LoadedStore
    first_index: ServedIndex | None
    sources: Sequence[PlannedSource]
    has_sources: bool
    n: int
    k: int
    needs_pool: bool
    inputs: Sequence[str]
    settings: ServiceSettings
    execution: Execution
    formula: Formula | None
    has_queries: bool
    vectors: Vectors | None
    ranking: Ranking | None
    stage: Ranking | None

    @property
    def end(self) -> int:
        """The number of candidates of a query that are picked, those of earlier pages included."""
        return self.k + (self.request.offset or 0)

    def with_options(self, **options: Any) -> Selection:
        """Returns the selection with other options of its request."""
        return self._replace(request=replace(self.request, **options))


@dataclass(frozen=True, eq=False, slots=True)
class _SourceNames:
    """What a source of a request stands for: an index, a list, or else ids."""

    name: str
    index: str = ""
    list: str = ""


@dataclass(frozen=True, eq=False)
class _Statement:
    """What requests of one shape have in common.

    It has names in place of what the version holds: stores and indexes are others after each
    change.

    Attributes:
      corpus, tower: Names.
      index: The name of the first index; empty: there is none.
      sources, inputs, formula: See `Selection`.
      outputs: The outputs of the tower that the score needs.
    """

    corpus: str
    index: str
    sources: tuple[_SourceNames, ...]
    inputs: tuple[str, ...]
    formula: Formula | None
    tower: str = ""
    outputs: frozenset[str] = frozenset()


def plan(
    model_version: ModelVersion,
    request: RetrievalRequest | RecommendationRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> Selection:
    """Returns the plan of a request.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
    """
    k = check_k(request.k, K_DEFAULT, settings.max_k)
    statement = prepared(model_version, _shape(request), lambda: _prepare(model_version, request))
    corpus = model_version.corpora[statement.corpus]
    index = model_version.indexes.get(statement.index)
    entries: Sequence[Source] = (_NO_OPTIONS,)
    has_queries = False
    formula = vectors = ranking = stage = None
    if isinstance(request, RetrievalRequest):
        assert index is not None  # noqa: S101 - the only source
        _check_sizes(request, settings, request.ids)
        n, vectors = _count_queries(model_version, index, request, settings, execution)
        formula = statement.formula
        has_queries = request.context is None and request.context_ids is None
    else:
        if request.sources:
            entries = request.sources
            _check_sources(request, index, k)
        tower = model_version.towers[statement.tower]
        ranking = Ranking(tower, tower.plan(statement.outputs), statement.formula)
        stage = _plan_stage(model_version, statement.tower, request, k)
        listed = [source.ids.ids for source in entries if source.ids is not None]
        _check_sizes(request, settings, *listed)
        n = lookup.count_queries(
            model_version, request.context, request.context_ids, settings, execution
        )
    _check_options(request, k)
    attributes = request.attributes
    neighbor_bytes = 2 * NUMBER_BYTES + corpus.store.text_bytes("id")
    for name in attributes:
        neighbor_bytes += corpus.store.text_bytes(f"attribute:{name}")
    count = execution.largest(n) * min(k, corpus.entry.size)
    check_bytes(
        count * neighbor_bytes,
        f"{count} neighbors with {len(attributes)} attributes",
        settings,
        "lower k, request fewer attributes, or send fewer queries at a time",
    )
    sources = [
        PlannedSource(
            number,
            names.name,
            entries[number],
            model_version.indexes.get(names.index),
            model_version.lists.get(names.list),
        )
        for number, names in enumerate(statement.sources)
    ]
    has_sources = entries[0] is not _NO_OPTIONS
    if has_sources:
        _check_candidates(corpus, sources, request, n, settings, execution)
    is_reordered = bool(ranking or request.formula or request.crowding or request.diversity)
    return Selection(
        model_version,
        request,
        corpus,
        index,
        sources,
        has_sources,
        n,
        k,
        is_reordered or request.offset is not None,
        statement.inputs,
        settings,
        execution,
        formula,
        has_queries,
        vectors,
        ranking,
        stage,
    )


def _shape(request: RetrievalRequest | RecommendationRequest) -> Hashable:
    """Returns what the statement of a request depends on."""
    shape = (
        request.index,
        request.formula,
        request.attributes,
        frozenset(request.crowding or ()),
        frozenset(request.context or ()),
        request.context is None,
        request.context_ids is None,
    )
    if isinstance(request, RetrievalRequest):
        queries = (request.vectors is None, request.ids is None, request.query_offsets is None)
        return shape, queries
    sources = tuple(
        [(source.name, source.index, source.list, source.ids is None) for source in request.sources]
    )
    return shape, request.tower, request.skip_stage, sources


def _prepare(
    model_version: ModelVersion, request: RetrievalRequest | RecommendationRequest
) -> _Statement:
    """Checks the names of a request."""
    if isinstance(request, RetrievalRequest):
        return _prepare_retrieval(model_version, request)
    return _prepare_recommendation(model_version, request)


def _prepare_retrieval(model_version: ModelVersion, request: RetrievalRequest) -> _Statement:
    name, index = choose_index(model_version, request.index)
    formula = None
    _check_attributes(index.corpus, request)
    if request.formula:
        names = {"score", *_numeric_attributes(index.corpus)}
        formula = formulas.parsed(request.formula, names, "a name", f"index {name!r}")

    has_contexts = request.context is not None or request.context_ids is not None
    if has_contexts + (request.vectors is not None) + (request.ids is not None) != 1:
        fields = ("context", "vectors", "ids", "context_ids")
        value = ", ".join([name for name in fields if getattr(request, name) is not None])
        expected = "exactly one of context (or context ids), vectors, and ids"
        raise InvalidArgument.of_field("request", value or "no query", expected, "has")
    inputs: tuple[str, ...] = ()
    if has_contexts:
        tower = model_version.towers[index.entry.query_tower]
        owner = f"query tower {tower.name!r}"
        check_names(request.context or (), tower.inputs, "context", "a feature", owner)
        inputs = tuple(tower.inputs)
        if request.query_offsets is not None:
            message = "query_offsets are accepted only with vectors or ids"
            violation = FieldViolation("query_offsets", "neither", "vectors or ids beside them")
            raise InvalidArgument(message, violation)
    return _Statement(index.corpus.name, name, (_SourceNames(name, name),), inputs, formula)


def _prepare_recommendation(
    model_version: ModelVersion, request: RecommendationRequest
) -> _Statement:
    name, tower = choose_ranking_tower(model_version, request.tower)
    if request.sources:
        sources = _named_sources(model_version, request)
        corpus = _corpus_of(model_version, sources)
        owner = f"sources {', '.join([repr(source.name) for source in sources])}"
    else:
        index_name, index = choose_index(model_version, request.index)
        sources = (_SourceNames(index_name, index_name),)
        corpus = index.corpus
        owner = f"index {index_name!r}"
    indexes = [model_version.indexes[source.index] for source in sources if source.index]
    formula_names = _numeric_attributes(corpus)
    if indexes:
        formula_names.append("retrieval_score")
    formula = formulas.formula_of(tower, request.formula, formula_names)

    # One context serves all steps: the sources, the stage and the ranking.
    query_towers = [model_version.towers[index.entry.query_tower] for index in indexes]
    lists = [model_version.lists[source.list] for source in sources if source.list]
    list_inputs = [entry.entry.by for entry in lists if entry.entry.by is not None]
    accepted = {*model_version.ranking_inputs(name, "context"), *list_inputs}
    for query_tower in query_towers:
        accepted |= query_tower.inputs.keys()
    owner = f"{owner} with tower {name!r}"
    check_names(request.context, accepted, "context", "a feature", owner)
    _check_attributes(corpus, request)

    # Of these inputs, only what the request computes with is read from the store.
    outputs = formulas.outputs_of(tower, formula)
    inputs = dict.fromkeys([*tower.plan(outputs).inputs["context"], *list_inputs])
    stage = model_version.manifest.stages.get(name)
    if stage is not None and not request.skip_stage:
        stage_plan = _stage_outputs(model_version.towers[stage.tower])
        inputs |= dict.fromkeys(stage_plan.inputs["context"])
    for query_tower in query_towers:
        inputs |= dict.fromkeys(query_tower.inputs)
    first_index = next((index.name for index in indexes), "")
    return _Statement(
        corpus.name,
        first_index,
        sources,
        tuple(inputs),
        formula,
        name,
        outputs,
    )


def _numeric_attributes(corpus: LoadedStore) -> list[str]:
    """Returns the attributes that a formula may take."""
    return [name for name, kind in corpus.entry.attributes.items() if kind in _FORMULA_TYPES]


def _check_attributes(corpus: LoadedStore, request: SelectionRequest) -> None:
    """Rejects attributes that are not stored, or cannot be crowded."""
    check_attributes(corpus, request.attributes, "attributes")
    check_attributes(corpus, request.crowding or (), "crowding")
    for name in request.crowding or ():
        kind = corpus.entry.attributes[name]
        if kind not in _CROWDING_TYPES:
            value = f"an attribute of type {kind}"
            expected = f"one of type {', '.join(_CROWDING_TYPES)}"
            raise InvalidArgument.of_field(f"crowding.{name}", value, expected)


def _named_sources(
    model_version: ModelVersion, request: RecommendationRequest
) -> tuple[_SourceNames, ...]:
    """Returns what the sources of a request stand for."""
    if request.index:
        value = repr(request.index[:SHOWN_CHARS])
        message = f"index is {value}, and there are sources; name the index in one of them"
        raise InvalidArgument(message, FieldViolation("index", value, "no index beside sources"))
    sources: list[_SourceNames] = []
    for number, entry in enumerate(request.sources):
        where = f"sources[{number}]"
        kinds = [kind for kind in _KINDS if getattr(entry, kind) is not None]
        if len(kinds) != 1:
            value = " and ".join(kinds) or "no candidates"
            expected = f"exactly one of {', '.join(_KINDS)}"
            raise InvalidArgument.of_field(where, value, expected, "has")
        if len(entry.name) > SHOWN_CHARS:
            size = f"{len(entry.name)} characters"
            expected = f"at most {SHOWN_CHARS}"
            raise InvalidArgument.of_field(f"{where}.name", size, expected, "has")
        if entry.index is not None:
            name = choose_index(model_version, entry.index)[0]
            sources.append(_SourceNames(entry.name or name, name))
        elif entry.list is not None:
            name = choose_list(model_version, entry.list).name
            sources.append(_SourceNames(entry.name or name, list=name))
        else:
            sources.append(_SourceNames(entry.name or "ids"))
    # Responses name sources: two of the same name could not be distinguished there.
    repeated, count = Counter([source.name for source in sources]).most_common(1)[0]
    if count > 1:
        message = f"{count} sources have the name {repeated!r}; distinct names were expected"
        violation = FieldViolation("sources", repr(repeated), "distinct names")
        raise InvalidArgument(f"{message}: set 'name'", violation)
    return tuple(sources)


def _corpus_of(model_version: ModelVersion, sources: Iterable[_SourceNames]) -> LoadedStore:
    """Returns the corpus of all sources, whose candidates are ranked together."""
    corpora = {}
    for source in sources:
        if source.index:
            corpus = model_version.indexes[source.index].corpus
            corpora[corpus.name] = corpus
        if source.list:
            name = model_version.lists[source.list].entry.corpus
            corpora[name] = model_version.corpora[name]
    if len(corpora) > 1:
        names = ", ".join(map(repr, corpora))
        message = f"the sources are of the corpora {names}; one corpus was expected"
        violation = FieldViolation("sources", names, "sources of one corpus")
        raise InvalidArgument(f"{message}, since their candidates are ranked together", violation)
    if corpora:
        return next(iter(corpora.values()))
    if len(model_version.corpora) != 1:
        listed = ", ".join(map(repr, model_version.corpora)) or "none"
        raise InvalidArgument(
            f"no source is an index or a list, and the model has the corpora {listed}; name an "
            "index or a list among the sources, of whose corpus all ids are",
            FieldViolation("sources", "ids", "an index or a list among the sources"),
        )
    return next(iter(model_version.corpora.values()))


def _check_sources(request: RecommendationRequest, index: ServedIndex | None, k: int) -> None:
    """Checks the numbers of all sources, and what needs an index among them."""
    minimum = sum([source.min_count for source in request.sources])
    if minimum > k:
        message = f"min_count of all sources is {minimum}, more than k, which is {k}"
        violation = FieldViolation("sources", str(minimum), f"a sum of min_count of at most {k}")
        raise InvalidArgument(f"{message}; at most k was expected", violation)
    if minimum and request.offset is not None:
        raise InvalidArgument(
            "min_count was sent with offset; a minimum holds for one list, not for its pages: "
            "leave one of them out",
            FieldViolation("offset", str(request.offset), "no offset beside min_count"),
        )
    for number, source in enumerate(request.sources):
        where = f"sources[{number}]"
        for field in _COUNTS:
            count = getattr(source, field)
            if count < 0:
                raise InvalidArgument.of_field(f"{where}.{field}", count, "at least 0")
        if source.max_count and source.min_count > source.max_count:
            expected = f"at most max_count, which is {source.max_count},"
            raise InvalidArgument.of_field(f"{where}.min_count", source.min_count, expected)
    if index is None:
        for option, reason in _NEEDS_INDEX.items():
            if getattr(request, option):
                message = f"{option} was sent, and no source is an index: {reason}"
                violation = FieldViolation(option, "sent", "an index among the sources")
                raise InvalidArgument(f"{message}; add one, or leave it out", violation)


def _check_candidates(
    corpus: LoadedStore,
    sources: Iterable[PlannedSource],
    request: SelectionRequest,
    contexts: int,
    settings: ServiceSettings,
    execution: Execution,
) -> None:
    """Rejects a request whose sources may give too many candidates.

    Raises:
      TooLarge: More than `max_candidates`, each counted as often as sources may have it.
      NotTogether: So many have the merged requests together.
    """
    count = 0
    for source in sources:
        size = corpus.entry.size
        if source.candidates is not None:
            size = source.candidates.size_max
        count += source.entry.candidates(contexts, request.retrieved_count, size)
    # Together, merged requests may exceed what each of them may have.
    if count > settings.max_candidates:
        execution.check_alone()
    at_most(settings, "max_candidates", count, "sources")


def _plan_stage(
    model_version: ModelVersion, tower: str, request: RecommendationRequest, k: int
) -> Ranking | None:
    """Returns the stage of a request; None: it has none."""
    if request.keep < 0:
        raise InvalidArgument.of_field("keep", request.keep, "at least 0")
    entry = model_version.manifest.stages.get(tower)
    if entry is None or request.skip_stage:
        if not request.keep:
            return None
        reason = f"no stage comes before {tower!r}"
        if entry is not None:
            reason = "skip_stage is true"
        violation = FieldViolation("keep", str(request.keep), "a stage that keeps candidates")
        raise InvalidArgument(f"keep is {request.keep}, and {reason}; leave it out", violation)

    # What a request sends holds as it is; what the bundle says grows to the length of the list.
    keep = request.keep or entry.keep
    if request.offset is None and not request.keep:
        keep = max(keep, k)
    # A stage that kept fewer candidates than a list, or a page, returns would make each short.
    wanted = k + (request.offset or 0)
    if keep < wanted:
        minimum = f"k, which is {k}"
        expected = "at least k"
        if request.offset is not None:
            minimum = f"offset + k, which is {wanted}"
            expected = "at least offset + k, the same for each page,"
        field = "keep of the bundle"
        if request.keep:
            field = "keep"
        violation = FieldViolation("keep", str(keep), expected.rstrip(","))
        message = f"{field} is {keep}, fewer than {minimum}; {expected} was expected"
        raise InvalidArgument(message, violation)
    stage_tower = model_version.towers[entry.tower]
    return Ranking(stage_tower, _stage_outputs(stage_tower), stage_tower.formula, keep)


def _stage_outputs(tower: LoadedTower) -> TowerPlan:
    """Returns the outputs of the tower of a stage, which no formula of a request changes."""
    return tower.plan(formulas.outputs_of(tower, tower.formula))


def _check_sizes(
    request: SelectionRequest, settings: ServiceSettings, *id_arrays: Ids | None
) -> None:
    """Rejects more values and ids than the limits, and a recall that is none.

    Args:
      request: The request.
      settings: The limits.
      id_arrays: The ids of queries and sources.
    """
    lists = [*id_arrays, request.context_ids]
    if request.exclude_ids is not None:
        lists.append(request.exclude_ids.ids)
    if request.negative_ids is not None:
        # Their vectors are read.
        at_most(settings, "max_candidates", request.negative_ids.ids.size, "negative_ids")
        lists.append(request.negative_ids.ids)
    if request.filter is not None:
        lists += request.filter.tokens
    columns: Iterable[Column] = (request.context or {}).values()
    check_values(settings, columns, *lists)
    if not 0 <= request.recall <= 1:
        raise InvalidArgument.of_field("recall", request.recall, "0 (as exported) to 1")


def _check_options(request: SelectionRequest, k: int) -> None:
    """Rejects a pool_size, offset, crowding or diversity that is out of range."""
    pool_size = request.pool_size
    if pool_size and pool_size < k:
        message = f"pool_size is {pool_size}; at least k, which is {k}, was expected"
        violation = FieldViolation("pool_size", str(pool_size), "at least k")
        raise InvalidArgument(message, violation)
    offset = request.offset
    if offset is not None:
        if offset < 0:
            raise InvalidArgument.of_field("offset", offset, "at least 0")
        if not pool_size:
            expected = "the size of the pool, the same for each page"
            message = f"offset was sent without pool_size; send {expected}"
            raise InvalidArgument(message, FieldViolation("pool_size", "empty", expected))
        if offset + k > pool_size:
            expected = "offset + k of at most pool_size"
            message = (
                f"offset is {offset} and k is {k}, more than the {pool_size} candidates of "
                f"the pool; {expected} was expected"
            )
            raise InvalidArgument(message, FieldViolation("offset", str(offset), expected))
    if not 0 <= request.diversity <= 1:
        raise InvalidArgument.of_field("diversity", request.diversity, "0 to 1")
    for name, maximum in (request.crowding or {}).items():
        if maximum < 1:
            raise InvalidArgument.of_field(f"crowding.{name}", maximum, "at least 1")


def _count_queries(
    model_version: ModelVersion,
    index: ServedIndex,
    request: RetrievalRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> tuple[int, Vectors | None]:
    """Returns the number of queries of a retrieval, and the vectors that were sent, checked; None:
    the queries are ids or contexts.

    Raises:
      InvalidArgument: There are no queries, or a vector does not fit the index.
      TooLarge: There are more than `max_queries`.
    """
    offsets = request.query_offsets
    field = "ids"
    vectors = None
    if request.ids is not None:
        n = int(request.ids.size)
    elif request.vectors is not None:
        field = "vectors"
        vectors = _sent_vectors(index.entry.dim, request.vectors)
        n = len(vectors)
    else:
        context = request.context or {}
        ids = request.context_ids
        return lookup.count_queries(model_version, context, ids, settings, execution), None
    check_queries(execution.largest(n, offsets), settings)
    if vectors is not None:
        check_sent_vectors(vectors)
    if offsets is None:
        return n, vectors
    query_count = max(1, offsets.size - 1)
    check_offsets(offsets, query_count, n, "query_offsets")
    empty = np.flatnonzero(offsets[1:] == offsets[:-1])
    if empty.size:
        value = f"none for query {empty[0]}"
        raise InvalidArgument.of_field(field, value, "at least one", "has")
    return query_count, vectors


def _sent_vectors(dim: int, vectors: Vectors) -> Vectors:
    """Returns the vectors of a request, [n, dim] float32."""
    array = vectors
    if array.dtype != np.float32:
        # What float32 cannot hold becomes an infinity, which is rejected below.
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    array = np.ascontiguousarray(array)
    has_rows = array.ndim < 2 or (array.ndim == 2 and array.shape[1] == dim)
    if not has_rows or array.size % dim:
        raise InvalidArgument.of_field(
            "vectors", list(array.shape), f"[n, {dim}] float32", "has shape"
        )
    return array.reshape(-1, dim)


def check_sent_vectors(vectors: Vectors) -> None:
    """Rejects [n, dim] vectors of a request that cannot be searched."""
    unsearchable = find_unsearchable(vectors)
    if unsearchable is not None:
        value = f"{unsearchable.value} in vector {unsearchable.position}"
        raise InvalidArgument.of_field("vectors", value, SEARCHABLE, "holds")
