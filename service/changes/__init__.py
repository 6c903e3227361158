"""Rows, candidates and contexts that change while a version is served."""
