"""Scores candidates by towers and formulas, and selects the best."""
