"""Intercepts table lookups in a model: a module for each API."""
