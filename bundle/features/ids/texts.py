"""The words of texts, which are ids: texts are split as TensorFlow's string operations do.

Source: TensorFlow 2.20, core/kernels/: string_split_op.cc, unicode_ops.cc and string_ngrams_op.cc
(the rules).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from bundle.features.ids.graphs import Graph
from bundle.format.id_graphs import GraphIds, InputNode
from bundle.format.ids import TextIds
from bundle.tables.id_values import Values
from bundle.tables.offsets import Offsets, offsets_of
from bundle.tables.vocabularies import Vocabulary

_AS_SENT = GraphIds(nodes=(InputNode(dtype="string"),))


class Text:
    """Splits texts into words."""

    def __init__(self, entry: TextIds, vocabularies: Mapping[str, Vocabulary]) -> None:
        """Takes the rule by which texts are computed and split."""
        self._entry = entry
        graph = entry.text or _AS_SENT
        opened = [vocabularies[table.vocabulary] for table in graph.tables]
        self._graph = Graph(graph, opened, gives_texts=True)

    def words(self, feature: str, values: Values) -> tuple[Values, Offsets]:
        """Returns [k] object, the words of m texts end to end, and [m + 1] int64 offsets.

        Raises:
          FeatureError: A value is no string, or no Unicode text; names `feature`.
        """
        entry = self._entry
        texts = self._graph.results([(feature, values)]).tolist()
        if entry.split == "characters":
            words_by_text = [list(text.decode()) for text in texts]
        else:
            # As bytes, the graph's texts are split at ASCII whitespace alone, as TensorFlow does.
            separator = None
            if entry.separator is not None:
                separator = entry.separator.encode()
            words_by_text = [[word.decode() for word in text.split(separator)] for text in texts]
        if entry.ngrams:
            words_by_text = [_ngrams(words, entry.ngrams) for words in words_by_text]
        if entry.length is not None:
            words_by_text = [words[: entry.length] for words in words_by_text]
        if entry.length is not None and entry.padding is not None:
            words_by_text = [
                words + [entry.padding] * (entry.length - len(words)) for words in words_by_text
            ]
        offsets = offsets_of([len(words) for words in words_by_text])
        return _objects(list(chain.from_iterable(words_by_text))), offsets


def _ngrams(words: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Returns all runs of words of each width, those of the first width first."""
    ngrams = []
    for width in widths:
        starts = range(len(words) - width + 1)
        ngrams += [" ".join(words[start : start + width]) for start in starts]
    return ngrams


def _objects(texts: Sequence[str]) -> Values:
    """Returns an array of strings. `np.array` would not take an empty list for one."""
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
