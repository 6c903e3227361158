"""Clients in other languages, and a program that builds and runs them."""
