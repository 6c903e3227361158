"""How much one request may hold, checked before it is decoded. Values over the whole request are the engine's check."""

from __future__ import annotations

from dataclasses import dataclass

from service.config import ServiceSettings
from service.errors import TooLarge


@dataclass(frozen=True)
class Limits:
    """Bounds of one request, named as the settings that hold them.

    Attributes:
      max_values: values; a JSON body has so many separators at most.
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

    def check(self, setting: str, count: int, where: str) -> None:
        """Raises TooLarge if field `where` has more than a setting allows."""
        limit: int = getattr(self, setting)
        if count > limit:
            what = setting.removeprefix("max_")
            raise TooLarge(f"{where} has {count} {what}; at most {limit} are accepted ({setting})")
