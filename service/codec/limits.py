"""How much one request may hold, checked before its arrays are allocated. Sums over a request are the engine's."""

from __future__ import annotations

from dataclasses import dataclass

from service.config import ServiceSettings
from service.errors import TooLarge


@dataclass(frozen=True)
class Limits:
    """Bounds of one request, named as the settings that hold them.

    Attributes:
      max_values: values or ids in one field.
      max_features: columns, over all features of the context and of the candidates.
      max_queries: requests in a JSON list.
      max_names: attributes, or heads.
    """

    max_values: int
    max_features: int
    max_queries: int
    max_names: int

    @classmethod
    def of(cls, settings: ServiceSettings) -> Limits:
        """Returns the limits that the settings hold."""
        return cls(settings.max_values, settings.max_features, settings.max_queries, settings.max_names)

    def check_values(self, count: int, where: str) -> None:
        """Raises TooLarge if field `where` has more than `max_values`."""
        _check(count, self.max_values, where, "values", "max_values")

    def check_features(self, count: int, where: str) -> None:
        """Raises TooLarge if field `where` has more than `max_features`."""
        _check(count, self.max_features, where, "columns", "max_features")

    def check_queries(self, count: int, where: str) -> None:
        """Raises TooLarge if list `where` has more than `max_queries`."""
        _check(count, self.max_queries, where, "entries", "max_queries")

    def check_names(self, count: int, where: str) -> None:
        """Raises TooLarge if list `where` has more than `max_names`."""
        _check(count, self.max_names, where, "names", "max_names")


def _check(count: int, limit: int, where: str, what: str, setting: str) -> None:
    if count > limit:
        raise TooLarge(f"{where} has {count} {what}; at most {limit} are accepted ({setting})")
