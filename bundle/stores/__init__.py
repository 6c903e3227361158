"""Candidate and context stores: features and attributes by id."""
