"""Reads corpora and contexts; writes their stores, vectors and indexes."""
