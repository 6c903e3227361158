"""Versions on disk: staging, publication, integrity, removal."""
