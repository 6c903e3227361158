"""The words of texts, which are ids: texts are split as TensorFlow's string operations do.

Source: TensorFlow 2.20, core/kernels/: string_split_op.cc, unicode_ops.cc and string_ngrams_op.cc
(the rules).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from bundle.features.columns import Column
from bundle.features.ids.graphs import Graph
from bundle.format.id_graphs import GraphIds, SplitNode
from bundle.tables.offsets import offsets_of
from bundle.tables.vocabularies import Vocabulary
from bundle.text_arrays import text_array


class Text:
    """Splits texts into words."""

    def __init__(
        self, name: str, graph: GraphIds, split: SplitNode, vocabularies: Sequence[Vocabulary]
    ) -> None:
        """Prepares the split of a text input.

        Args:
          name: The name of the input.
          graph: The graph that computes the texts, with its node `split`.
          split: That node: how texts become words.
          vocabularies: The open vocabularies that the graph looks up.
        """
        self._name = name
        self._split = split
        self._graph = Graph(graph.part(split.inputs[0]), vocabularies, gives_texts=True)

    def words(self, columns: Sequence[Column], _n: int) -> Column:
        """Returns the words of texts, [k] object, with the offsets of each example.

        Args:
          columns: The column of the texts, one for each example.

        Raises:
          FeatureError: A value is no string, or no Unicode text; names the input.
        """
        (column,) = columns
        split = self._split
        texts = self._graph.results([(self._name, column.values)]).tolist()
        if split.split == "characters":
            words_by_text = [list(text.decode()) for text in texts]
        else:
            # As bytes, the graph's texts are split at ASCII whitespace alone, as TensorFlow does.
            separator = None
            if split.separator is not None:
                separator = split.separator.encode()
            words_by_text = [[word.decode() for word in text.split(separator)] for text in texts]
        if split.ngrams:
            words_by_text = [_ngrams(words, split.ngrams) for words in words_by_text]
        if split.length is not None:
            words_by_text = [words[: split.length] for words in words_by_text]
        if split.length is not None and split.padding is not None:
            words_by_text = [
                words + [split.padding] * (split.length - len(words)) for words in words_by_text
            ]
        offsets = offsets_of([len(words) for words in words_by_text])
        return Column(text_array(list(chain.from_iterable(words_by_text))), offsets)


def _ngrams(words: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Returns all runs of words of each width, those of the first width first."""
    ngrams = []
    for width in widths:
        starts = range(len(words) - width + 1)
        ngrams += [" ".join(words[start : start + width]) for start in starts]
    return ngrams
