"""Generated from proto/; see scripts/generate_stubs."""
