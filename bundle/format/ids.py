"""Manifest entries: how ids become rows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bundle.format.fields import Name, StrictModel
from bundle.format.id_graphs import GraphIds, LookupTable


class KeyedIds(StrictModel):
    """Rows that a key index of the bundle (`keys`) holds for int64 ids: tables of dynamic keys."""

    kind: Literal["keyed"] = "keyed"
    keys: Name


IdRule = Annotated[GraphIds | KeyedIds, Field(discriminator="kind")]


def lookup_tables_of(rule: IdRule) -> tuple[LookupTable, ...]:
    """Returns the lookup tables of a rule."""
    if isinstance(rule, KeyedIds):
        return ()
    return rule.tables
