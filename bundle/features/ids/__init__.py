"""Turns ids into rows: hashes, vocabularies, crosses, texts."""
