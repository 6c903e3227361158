"""Draws how a model is partitioned: as text, a page or an image."""
