"""Divides ranking towers into parts; writes towers for LiteRT and as SavedModels."""
