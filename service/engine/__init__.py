"""Computes the five calls: lookup, embed, retrieve, rank and recommend."""
