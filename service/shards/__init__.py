"""Models that are partitioned over machines: routers and shards."""
