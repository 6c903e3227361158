"""The user's model code: loaded as a whole, or its definitions alone."""

from export.model_code.definition_modules import definitions

__all__ = ["definitions"]
