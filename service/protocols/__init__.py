"""Protocols of other servers, which call signatures with named tensors."""
