"""Reads candidates and contexts; writes stores, vectors and indexes."""
