"""A text -> the words that ids are: changed and split as TensorFlow's operations of strings do.

All is done on UTF-8 bytes, of which `lower` and `upper` know ASCII letters only.
Source: TensorFlow 2.20, core/kernels/: string_lower_op.cc, string_strip_op.cc, static_regex_replace_op.cc (RE2),
string_split_op.cc, unicode_ops.cc and string_ngrams_op.cc (the rules).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from bundle.errors import FeatureError
from bundle.features.columns import Offsets
from bundle.features.rules.ids import Rule
from bundle.format.id_rules import TextIds, TextStep
from bundle.tables.id_values import Rows, Values, strings


class Text:
    """Splits the texts of one input.

    Attributes:
      splits: whether a text is any number of words, instead of one.
    """

    def __init__(self, name: str, page: TextIds) -> None:
        """Takes the input's name, for messages, and what a manifest's page tells."""
        self._name, self._page, self.splits = name, page, page.split is not None
        self._steps = [_change(step) for step in page.steps]

    def changed(self, values: Values) -> Values:
        """Returns [m] object: each text as the words that are not split."""
        return _texts(self._bytes(values))

    def words(self, values: Values) -> tuple[Values, Offsets]:
        """Returns [k] object, the words of m texts one after another, and [m + 1] int64 offsets.

        Raises:
          FeatureError: a value is no string, or no Unicode text.
        """
        if self._page.split == "characters":
            listed = [list(text) for text in self.changed(values).tolist()]
        else:
            # In one piece: a word holds no whitespace, so they are told apart again behind it.
            parts = [text.split() for text in self._bytes(values)]
            whole = iter(b"\n".join(chain.from_iterable(parts)).decode().split("\n"))
            listed = [[next(whole) for _ in part] for part in parts]
        if self._page.ngrams:
            listed = [_ngrams(words, self._page.ngrams) for words in listed]
        if self._page.length is not None:
            listed = [words[: self._page.length] for words in listed]
        offsets = np.zeros(len(listed) + 1, np.int64)
        np.cumsum([len(words) for words in listed], out=offsets[1:])
        return _objects(list(chain.from_iterable(listed))), offsets

    def _bytes(self, values: Values) -> list[bytes]:
        try:
            found = [text.encode() for text in strings(self._name, values).tolist()]
        except UnicodeEncodeError as problem:
            told = f"a string is no Unicode text: {problem}; UTF-8 was expected"
            raise FeatureError(self._name, told) from problem
        for change in self._steps:
            found = [change(text) for text in found]
        return found


class Changed:
    """Row = what a rule makes of a text as a whole, once it is changed."""

    def __init__(self, text: Text, rule: Rule) -> None:
        self._text, self._rule = text, rule

    def resolve(self, values: Values) -> Rows:
        """Resolves strings."""
        return self._rule.resolve(self._text.changed(values))


def _change(step: TextStep) -> Callable[[bytes], bytes]:
    what, by = step.what.encode(), step.by.encode()
    if step.do == "replace_any":
        if not by:
            return lambda text: text.translate(None, what)
        # An ASCII byte is a character of its own in UTF-8.
        one_of = re.compile(b"[" + re.escape(what) + b"]")
        return lambda text: one_of.sub(lambda _: by, text)
    if step.do == "replace":
        return lambda text: text.replace(what, by)
    plain: dict[str, Callable[[bytes], bytes]] = {"lower": bytes.lower, "upper": bytes.upper, "strip": bytes.strip}
    return plain[step.do]


def _ngrams(words: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [" ".join(words[at : at + width]) for width in widths for at in range(len(words) - width + 1)]


def _texts(texts: Sequence[bytes]) -> Values:
    return _objects([text.decode() for text in texts])


def _objects(texts: Sequence[str]) -> Values:
    found = np.empty(len(texts), object)
    found[:] = texts
    return found
