"""A manifest's page of an id rule -> what resolves ids by it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bundle.features.rules import ids
from bundle.format.id_rules import (
    ArithmeticIds,
    BucketIds,
    ChainedIds,
    ComputedIds,
    HashIds,
    IdentityIds,
    KeyedIds,
    VocabularyIds,
)
from bundle.tables.key_index import KeyIndex
from bundle.tables.vocabularies import Vocabulary

OneInput = IdentityIds | ArithmeticIds | ComputedIds | HashIds | VocabularyIds | BucketIds | ChainedIds | KeyedIds
"""Rules that make a row of one value."""
_ANY = 1 << 63
"""As many rows as there may be."""


def rule_of(
    name: str,
    rows: int | None,
    page: OneInput,
    vocabularies: Mapping[str, Vocabulary],
    keys: Mapping[str, KeyIndex] = MappingProxyType({}),
) -> ids.Rule:
    """Returns the rule of a page.

    Args:
      name: of the input, for messages.
      rows: that there are; None: any integer, as what another rule goes on with.
      page: what the manifest says.
      vocabularies, keys: open, by name.
    Raises:
      KeyError: a vocabulary or key index is not open.
    """
    limit = _ANY if rows is None else rows
    match page:
        case HashIds():
            plain = page.key is None and page.mask is None
            told = (name, limit, page.buckets, page.first_row)
            return ids.Hash(*told) if plain else ids.KeptHash(*told, page.key, page.mask)
        case VocabularyIds():
            how = page.model_dump(exclude={"kind", "vocabulary"})
            return ids.Listed(name, limit, vocabularies[page.vocabulary], **how)
        case BucketIds():
            return ids.Buckets(name, limit, page.boundaries, page.first_row, page.falling)
        case KeyedIds():
            return ids.Keyed(name, limit, keys[page.keys])
        case ChainedIds():
            *before, last = page.rules
            made = [rule_of(name, None, each, vocabularies) for each in before]
            return ids.Chained([*made, rule_of(name, rows, last, vocabularies)])
        case _:
            return _of_integers(name, rows, page)


def _of_integers(name: str, rows: int | None, page: IdentityIds | ArithmeticIds | ComputedIds) -> ids.Rule:
    if isinstance(page, ComputedIds):
        return ids.Computed(name, rows, [(each.do, each.by) for each in page.operations])
    computed = isinstance(page, ArithmeticIds)
    if computed:
        return ids.Arithmetic(name, rows, **page.model_dump(exclude={"kind"}))
    return ids.Identity(name, _ANY if rows is None else rows)
