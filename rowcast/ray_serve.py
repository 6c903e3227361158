"""What configurations of Ray Serve name: the application, and its autoscaling policy."""

from service.ray_serve import replicas, scale_by_inflight

__all__ = ["replicas", "scale_by_inflight"]
