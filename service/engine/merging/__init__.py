"""Merges requests into one, and splits its response."""
