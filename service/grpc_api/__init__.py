"""The gRPC endpoint: `grpc.aio` with the generated contract, health checking and reflection. Translates only."""
