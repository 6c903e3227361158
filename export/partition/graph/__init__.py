"""Follows values through a traced graph, and prunes it to towers."""
