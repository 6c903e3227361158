"""The program `rowcast-serve`: computes responses from bundles, over HTTP and gRPC."""
