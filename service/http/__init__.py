"""The HTTP transport on FastAPI: routes, bodies and middleware."""
