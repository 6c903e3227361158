"""Candidates and contexts that change while a version is served."""
