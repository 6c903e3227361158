"""Words of texts: which changes, splits and masks a rule describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bundle.format.manifest import HashIds, TextIds, TextStep
from export.graphs.loading import tf
from export.tensorflow_models.id_rules import texts as text_rules
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from tests.export.tensorflow_models.graph.traced_calls import texts, trace

Change = Callable[[Any], Any]
ROWS = 50
HASH = HashIds(buckets=ROWS)
LOWER = TextStep(do="lower")
MARKS = " !\"#$%&'()*+,-./"
TAGS = tf.RaggedTensorSpec([None, None], tf.string)
INPUTS = {"title": texts(), "other": texts(), "pair": texts(2), "tags": TAGS}


def hashed(strings: Any) -> Any:
    return tf.strings.to_hash_bucket_fast(strings, ROWS)


def whole(change: Change) -> ResolvedIds | None:
    """Finds the rule of hashed texts that are one word each."""
    traced = trace(lambda features: {"ids": hashed(change(features))}, **INPUTS)
    return text_rules.find(traced.results["ids"], traced.calls, ROWS)


def split(words: Change, ids: Change = hashed, counted_by: Change | None = None) -> Any:
    """Finds the rule of ids of the words that texts are split into.

    Args:
      words: returns ragged words.
      ids: returns their ids.
      counted_by: returns ragged words of which each text has as many; None: these.
    """

    def call(features: Any) -> dict[str, Any]:
        found = words(features)
        counts = found if counted_by is None else counted_by(features)
        return {"ids": ids(found.flat_values), "splits": counts.row_splits}

    traced = trace(call, **INPUTS)
    made = traced.results
    return text_rules.find(made["ids"], traced.calls, ROWS, made["splits"])


def replaced(pattern: str, by: str, **how: Any) -> Change:
    return lambda features: tf.strings.regex_replace(features["title"], pattern, by, **how)


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (lambda f: tf.strings.lower(f["title"]), [LOWER]),
        (lambda f: tf.strings.upper(f["title"]), [TextStep(do="upper")]),
        (
            lambda f: tf.strings.lower(tf.strings.strip(f["title"])),
            [TextStep(do="strip"), LOWER],
        ),
        (replaced("[a-c]", "x"), [TextStep(do="replace_any", what="abc", by="x")]),
        (replaced("<br />", " "), [TextStep(do="replace", what="<br />", by=" ")]),
        (replaced(r"\.", ""), [TextStep(do="replace", what=".", by="")]),
        # Letters beyond ASCII, patterns of several characters, and parts of what was found.
        (lambda f: tf.strings.lower(f["title"], encoding="utf-8"), None),
        (replaced("[\u00e9]", "e"), None),
        (replaced("[a-\u00e9]", "x"), None),
        (replaced("[ -/]", "x"), [TextStep(do="replace_any", what=MARKS, by="x")]),
        (replaced("[a]", "a"), None),
        (replaced("[a]", "\u00e9"), None),
        (replaced("[a]", r"\0"), None),
        (replaced("[a]", "x", replace_global=False), None),
        (replaced("[^a]", "x"), None),
        (replaced("a+", "x"), None),
        (replaced("", "x"), None),
        # Not one text of each example.
        (lambda f: tf.strings.lower(f["pair"]), None),
        (lambda f: tf.strings.lower(f["pair"][:, 1]), None),
        (lambda f: tf.strings.lower(f["tags"].values), None),
        (lambda f: tf.strings.lower(tf.strings.join([f["title"], f["other"]])), None),
        (lambda f: f["title"], None),
    ],
)
def test_changes_of_a_text_are_steps_of_its_rule(
    change: Change, steps: list[TextStep] | None
) -> None:
    resolved = whole(change)
    if steps is None:
        assert resolved is None
    else:
        assert resolved is not None
        assert resolved.source.name == "title"
        assert resolved.rule == TextIds(steps=tuple(steps), ids=HASH)


def code_points(features: Any) -> Any:
    return tf.strings.unicode_decode(features["title"], "UTF-8")


def encoded(each: Change, encoding: str = "UTF-8") -> Change:
    """Returns the characters of what is made of a title's code points."""

    def characters(features: Any) -> Any:
        points = code_points(features)
        strings = tf.strings.unicode_encode(each(points.values), encoding)
        return tf.RaggedTensor.from_row_splits(strings, points.row_splits, validate=False)

    return characters


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (lambda f: tf.strings.split(f["title"]), {"split": "whitespace"}),
        (
            lambda f: tf.strings.split(tf.strings.lower(f["title"])),
            {"split": "whitespace", "steps": (LOWER,)},
        ),
        (lambda f: tf.strings.unicode_split(f["title"], "UTF-8"), {"split": "characters"}),
        (
            lambda f: tf.strings.ngrams(tf.strings.split(f["title"]), 2),
            {"split": "whitespace", "ngrams": (2,)},
        ),
        (
            lambda f: tf.strings.ngrams(tf.strings.split(f["title"]), (1, 3)),
            {"split": "whitespace", "ngrams": (1, 3)},
        ),
        (encoded(lambda points: tf.expand_dims(points, 1)), {"split": "characters"}),
        # Other words.
        (lambda f: tf.strings.split(f["title"], "|"), None),
        (lambda f: tf.strings.split(f["title"], maxsplit=2), None),
        (lambda f: tf.strings.split(f["pair"][:, 1]), None),
        (lambda f: tf.strings.split(tf.strings.join([f["title"], f["other"]])), None),
        (lambda f: tf.strings.unicode_split(f["title"], "UTF-16-BE"), None),
        (encoded(lambda points: tf.expand_dims(points, 1), "UTF-16-BE"), None),
        (encoded(lambda points: tf.expand_dims(points + 1, 1)), None),
        (encoded(lambda points: tf.reshape(points, [-1, 2])), None),
        (lambda f: tf.strings.ngrams(tf.strings.split(f["title"]), 2, separator="_"), None),
        (
            lambda f: tf.strings.ngrams(tf.strings.split(f["title"]), 2, pad_values=("<", ">")),
            None,
        ),
        (lambda f: tf.strings.ngrams(f["tags"], 2), None),
        (
            lambda f: tf.strings.ngrams(tf.strings.ngrams(tf.strings.split(f["title"]), 2), 2),
            None,
        ),
        (
            lambda f: tf.strings.ngrams(
                tf.strings.split(f["other"]).with_values(tf.strings.split(f["title"]).values), 2
            ),
            None,
        ),
    ],
)
def test_words_of_a_text_are_a_rule_with_its_split(
    words: Change, rule: dict[str, Any] | None
) -> None:
    resolved = split(words)
    if rule is None:
        assert resolved is None
    else:
        assert resolved.source.name == "title"
        assert resolved.rule == TextIds.model_validate({"ids": HASH, **rule})


def test_words_that_are_counted_by_another_text_have_no_rule() -> None:
    def titles(features: Any) -> Any:
        return tf.strings.split(features["title"])

    assert split(titles, counted_by=lambda f: tf.strings.split(f["other"])) is None
    assert split(titles, counted_by=lambda f: f["tags"]) is None


@pytest.mark.parametrize(
    ("compare", "other", "mask"),
    [
        # No word is empty, so its mask is no part of the rule; others are.
        (tf.equal, "", None),
        (tf.equal, "a", "a"),
        (tf.not_equal, "", "no rule"),
    ],
)
def test_mask_of_empty_words_is_left_out(compare: Any, other: str, mask: str | None) -> None:
    def masked(words: Any) -> Any:
        return tf.where(compare(words, other), tf.constant(0, tf.int64), hashed(words))

    resolved = split(lambda f: tf.strings.split(f["title"]), masked)
    if mask == "no rule":
        assert resolved is None
    else:
        assert resolved.rule.ids == HashIds(buckets=ROWS, mask=mask)


def test_mask_of_the_words_of_another_text_is_no_rule() -> None:
    def call(features: Any) -> dict[str, Any]:
        words = tf.strings.split(features["title"])
        others = tf.strings.split(features["other"])
        masked = tf.equal(others.values, "")
        ids = tf.where(masked, tf.constant(0, tf.int64), hashed(words.values))
        return {"ids": ids, "splits": words.row_splits}

    traced = trace(call, **INPUTS)
    made = traced.results
    assert text_rules.find(made["ids"], traced.calls, ROWS, made["splits"]) is None
