"""A text -> the words that ids are: changed and split as TensorFlow's operations of strings do.

All is done on UTF-8 bytes, of which `lower` and `upper` know ASCII letters only.
Source: TensorFlow 2.20, core/kernels/: string_lower_op.cc, string_strip_op.cc,
static_regex_replace_op.cc (RE2), string_split_op.cc, unicode_ops.cc and string_ngrams_op.cc (the
rules).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from bundle.errors import FeatureError
from bundle.format.id_rules import TextIds, TextStep
from bundle.tables.id_values import Values, strings
from bundle.tables.offsets import Offsets, offsets_of


class Text:
    """Changes texts, and splits them."""

    def __init__(self, steps: Sequence[TextStep], words: TextIds | None = None) -> None:
        """Takes how a text is changed, and what says how it is split."""
        self._steps = [_change(step) for step in steps]
        self._entry = words

    def changed(self, feature: str, values: Values) -> Values:
        """Returns [m] object: each text, changed.

        Raises:
          FeatureError: a value is no string, or no Unicode text; names `feature`.
        """
        return _objects([text.decode() for text in self._bytes(feature, values)])

    def words(self, feature: str, values: Values) -> tuple[Values, Offsets]:
        """Returns [k] object, the words of m texts end to end, and [m + 1] int64 offsets; raises as
        `changed`.
        """
        entry = self._entry
        assert entry is not None  # noqa: S101 - asked of texts that are split
        if entry.split == "characters":
            listed = [list(text) for text in self.changed(feature, values).tolist()]
        else:
            listed = [
                [word.decode() for word in text.split()] for text in self._bytes(feature, values)
            ]
        if entry.ngrams:
            listed = [_ngrams(words, entry.ngrams) for words in listed]
        if entry.length is not None:
            listed = [words[: entry.length] for words in listed]
        return _objects(list(chain.from_iterable(listed))), offsets_of(
            [len(words) for words in listed]
        )

    def _bytes(self, feature: str, values: Values) -> list[bytes]:
        try:
            found = [text.encode() for text in strings(feature, values).tolist()]
        except UnicodeEncodeError as problem:
            raise FeatureError(
                feature, f"a string is no Unicode text: {problem}; UTF-8 was expected"
            ) from problem
        for change in self._steps:
            found = [change(text) for text in found]
        return found


def _change(step: TextStep) -> Callable[[bytes], bytes]:
    what = step.what.encode()
    by = step.by.encode()
    if step.do == "replace_any":
        if not by:
            return lambda text: text.translate(None, what)
        # An ASCII byte is a character of its own in UTF-8.
        one_of = re.compile(b"[" + re.escape(what) + b"]")
        return lambda text: one_of.sub(lambda _: by, text)
    if step.do == "replace":
        return lambda text: text.replace(what, by)
    plain: dict[str, Callable[[bytes], bytes]] = {
        "lower": bytes.lower,
        "upper": bytes.upper,
        "strip": bytes.strip,
    }
    return plain[step.do]


def _ngrams(words: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        " ".join(words[at : at + width]) for width in widths for at in range(len(words) - width + 1)
    ]


def _objects(texts: Sequence[str]) -> Values:
    found = np.empty(len(texts), object)
    found[:] = texts
    return found
