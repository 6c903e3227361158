"""Authentication and TLS: tokens, certificates, and the files that hold them."""
