"""The gRPC transport on `grpc.aio`, with health checks and reflection."""
