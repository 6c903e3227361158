"""Towers that the user brings in files, beside tables of a PyTorch checkpoint."""
