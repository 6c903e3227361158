"""Limits of requests, which settings state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.config import ServiceSettings
from service.errors import TooLarge


def at_most(settings: ServiceSettings, setting: str, count: int, field: str) -> None:
    """Raises TooLarge if a field, or `request`, has more than the limit `setting` allows.

    Args:
      settings: The settings of the service.
      setting: The name of one of them, `max_` and what is counted.
      count: How many of these the field has.
      field: The field, for the error.
    """
    # By its name, which the message repeats, so that an operator finds the setting.
    limit: int = getattr(settings, setting)
    if count > limit:
        size = f"{count} {setting.removeprefix('max_')}"
        raise TooLarge.of_limit(field, size, limit, setting)


def check_count(setting: str, value: object, field: str, settings: ServiceSettings) -> None:
    """Raises TooLarge if a list, or an object, has more elements than a limit allows, before any of
    them is read.

    Args:
      setting: The name of the setting; "": any number is allowed.
      value: What was sent. What has no elements is left to its reader.
      field: The field, for the error.
      settings: The settings of the service.
    """
    if not setting or isinstance(value, str | bytes):
        return
    if isinstance(value, Sequence | Mapping):
        at_most(settings, setting, len(value), field)
