"""gRPC over HTTP/2 on asyncio: connections, streams, messages. Knows nothing of what is called."""
