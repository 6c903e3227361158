"""Writes a SavedModel that contains its tables."""
