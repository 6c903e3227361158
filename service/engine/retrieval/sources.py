"""Where the candidates of a recommendation come from: what a request says of its sources, checked.

Without sources, a request has one: its index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from service.config import ServiceSettings
from service.contract.limits import at_most
from service.contract.messages import RecommendationRequest, Source
from service.engine.execution import Execution
from service.engine.validation import SHOWN_CHARS, choose_index, choose_list
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import LoadedList, LoadedStore, ModelVersion, ServedIndex

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


@dataclass(frozen=True, eq=False)
class PlannedSource:
    """A source of a request, checked.

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


@dataclass(frozen=True, eq=False)
class Sources:
    """The sources of a request.

    Attributes:
      corpus: The corpus that all of them are of.
      index: The first index: it gives retrieval scores, and the vectors that diversity compares.
        None: no source is an index.
      planned: The sources, in the order of the request.
      names: Their names; (): the request names an index, or none.
    """

    corpus: LoadedStore
    index: ServedIndex | None
    planned: tuple[PlannedSource, ...]
    names: tuple[str, ...]

    @property
    def indexes(self) -> dict[str, ServedIndex]:
        """Returns the indexes, by name."""
        return {
            source.index.name: source.index for source in self.planned if source.index is not None
        }

    @property
    def list_inputs(self) -> list[str]:
        """Returns the inputs of contexts that select the segments of lists."""
        lists = [source.candidates for source in self.planned if source.candidates is not None]
        inputs = [candidates.entry.by for candidates in lists]
        return [name for name in inputs if name is not None]

    @property
    def owner(self) -> str:
        """What messages call them."""
        if self.names:
            return f"sources {', '.join(map(repr, self.names))}"
        return f"index {self.planned[0].name!r}"

    def check_count(
        self,
        request: RecommendationRequest,
        contexts: int,
        settings: ServiceSettings,
        execution: Execution,
    ) -> None:
        """Rejects a request whose sources may give too many candidates.

        Args:
          request: The request, or several that were merged.
          contexts: The number of contexts.
          settings: The limit.
          execution: The batch of the request.

        Raises:
          TooLarge: More than `max_candidates`, each counted as often as sources may have it.
          NotTogether: So many have the merged requests together.
        """
        if not self.names:
            return  # the pool of the index is checked where it is retrieved
        counts = []
        for source in self.planned:
            size = self.corpus.entry.size
            if source.candidates is not None:
                size = source.candidates.size_max
            counts.append(source.entry.candidates(contexts, request.retrieved_count, size))
        count = sum(counts)
        # Together, merged requests may exceed what each of them may have.
        if count > settings.max_candidates:
            execution.check_alone()
        at_most(settings, "max_candidates", count, "sources")


def plan(model_version: ModelVersion, request: RecommendationRequest, k: int) -> Sources:
    """Returns the sources of a request.

    Args:
      model_version: The model version.
      request: The request.
      k: The number of recommendations.

    Raises:
      InvalidArgument: A source is not as described, or they do not fit each other; names it.
      NotFound: There is no such index, or no corpus.
    """
    if not request.sources:
        return of_index(model_version, request.index)
    _check_together(request, k)
    planned = tuple(
        [_plan_source(model_version, number, entry) for number, entry in enumerate(request.sources)]
    )
    # Responses name sources: two of the same name could not be distinguished there.
    names = [source.name for source in planned]
    repeated, count = Counter(names).most_common(1)[0]
    if count > 1:
        message = f"{count} sources have the name {repeated!r}; distinct names were expected"
        violation = FieldViolation("sources", repr(repeated), "distinct names")
        raise InvalidArgument(f"{message}: set 'name'", violation)
    first_index = next((source.index for source in planned if source.index is not None), None)
    if first_index is None:
        for option, reason in _NEEDS_INDEX.items():
            if getattr(request, option):
                message = f"{option} was sent, and no source is an index: {reason}"
                violation = FieldViolation(option, "sent", "an index among the sources")
                raise InvalidArgument(f"{message}; add one, or leave it out", violation)
    corpus = _corpus_of(model_version, planned)
    return Sources(corpus, first_index, planned, tuple(names))


def of_index(model_version: ModelVersion, name: str) -> Sources:
    """Returns the only source of a request that names an index; empty: the only one."""
    name, index = choose_index(model_version, name)
    return Sources(index.corpus, index, (PlannedSource(0, name, _NO_OPTIONS, index),), ())


def _check_together(request: RecommendationRequest, k: int) -> None:
    """Checks what a request says of all its sources."""
    if request.index:
        value = repr(request.index[:SHOWN_CHARS])
        message = f"index is {value}, and there are sources; name the index in one of them"
        raise InvalidArgument(message, FieldViolation("index", value, "no index beside sources"))
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


def _plan_source(model_version: ModelVersion, number: int, entry: Source) -> PlannedSource:
    """Returns a source with what it names."""
    where = f"sources[{number}]"
    kinds = [kind for kind in _KINDS if getattr(entry, kind) is not None]
    if len(kinds) != 1:
        value = " and ".join(kinds) or "no candidates"
        raise InvalidArgument.of_field(where, value, f"exactly one of {', '.join(_KINDS)}", "has")
    for field in _COUNTS:
        count = getattr(entry, field)
        if count < 0:
            raise InvalidArgument.of_field(f"{where}.{field}", count, "at least 0")
    if entry.max_count and entry.min_count > entry.max_count:
        expected = f"at most max_count, which is {entry.max_count},"
        raise InvalidArgument.of_field(f"{where}.min_count", entry.min_count, expected)
    if len(entry.name) > SHOWN_CHARS:
        size = f"{len(entry.name)} characters"
        raise InvalidArgument.of_field(f"{where}.name", size, f"at most {SHOWN_CHARS}", "has")
    if entry.index is not None:
        name, index = choose_index(model_version, entry.index)
        return PlannedSource(number, entry.name or name, entry, index)
    if entry.list is not None:
        candidates = choose_list(model_version, entry.list)
        return PlannedSource(number, entry.name or candidates.name, entry, None, candidates)
    return PlannedSource(number, entry.name or "ids", entry)


def _corpus_of(model_version: ModelVersion, planned: Sequence[PlannedSource]) -> LoadedStore:
    """Returns the corpus of all sources, whose candidates are ranked together."""
    corpora = {}
    for source in planned:
        if source.index is not None:
            corpora[source.index.corpus.name] = source.index.corpus
        if source.candidates is not None:
            name = source.candidates.entry.corpus
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
