"""Random computations of ids: where rules tell them, they make the integers that TensorFlow makes, bit for bit."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from bundle.features.rules.ids import OneInput, cast, rule_of
from bundle.format.manifest import ChainedIds, IdRule, VocabularyIds, vocabularies_of
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.frameworks.loading import load_tensorflow
from export.graph.input_paths import Values
from export.id_rules import integers
from export.id_rules.chains import find_chain
from export.id_rules.found import FoundIds
from export.id_rules.rules import rows_of
from tests.golden.id_computations import Computation

CONFIGURATIONS = 240


def named(rule: IdRule) -> OneInput:
    """Gives each vocabulary of a rule a name of its own."""
    if isinstance(rule, ChainedIds):
        each = [
            link.model_copy(update={"vocabulary": f"v{place}"}) if isinstance(link, VocabularyIds) else link
            for place, link in enumerate(rule.rules)
        ]
        return rule.model_copy(update={"rules": tuple(each)})
    assert isinstance(rule, OneInput)
    return rule


def rows_inside(page: OneInput, found: FoundIds, made: Computation) -> NDArray[np.int64]:
    """Returns what a self-contained SavedModel makes of ids by a rule."""
    tf = load_tensorflow()
    sent, tables = tf.constant(made.sent), {}
    for rule, keys in zip(vocabularies_of(page), found.keys, strict=True):
        places = tf.range(len(keys), dtype=tf.int64)
        known = tf.constant(keys, tf.string if isinstance(keys[0], str) else tf.int64)
        tables[rule.vocabulary] = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(known, places), -1)
    ids = sent if found.cast is None else integers.cast(found.cast, sent)
    rows: NDArray[np.int64] = rows_of(page, ids, tables).numpy()
    return rows


def test_computations_that_rules_tell_make_tensorflow_s_integers() -> None:
    told: Counter[str] = Counter()
    for seed in range(CONFIGURATIONS):
        made = Computation(seed)
        found = find_chain(Values(made.ids), made.call, None)
        if not isinstance(found, FoundIds) or found.rule is None:
            told["not told" if not isinstance(found, FoundIds) else "as they are"] += 1
            continue
        page = named(found.rule)
        keys = [
            Vocabulary(StringKeys(each) if isinstance(each[0], str) else IntegerKeys(np.array(each)))
            for each in found.keys
        ]
        held = {each.vocabulary: opened for each, opened in zip(vocabularies_of(page), keys, strict=True)}
        sent = made.sent if found.cast is None else cast(found.cast, "x", made.sent)
        rows = rule_of(page, held).resolve("x", sent)
        assert rows.tolist() == rows_inside(page, found, made).tolist(), (seed, found)
        if found.unknown is not None:
            rows = np.where(rows < 0, found.unknown.row or 0, rows)
        assert rows.tolist() == made.made.tolist(), (seed, found)
        told[page.kind] += 1
    assert told["not told"] < CONFIGURATIONS // 20
    assert all(told[kind] >= 10 for kind in ("chained", "computed", "vocabulary", "hash"))
