"""What a model file may use of the exporter."""

from export.model_code import definitions

__all__ = ["definitions"]
