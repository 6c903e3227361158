"""Finds the nearest candidates: filters, search, reordering."""
