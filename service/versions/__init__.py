"""Model versions: finds, loads, switches and releases them."""
