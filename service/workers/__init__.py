"""The processes of a service: a small supervisor, and workers that are whole services.

Workers listen on the same ports (SO_REUSEPORT) and follow one desired-state file. What they must
know of each other is in the coordinator of the supervisor (`service/coordinator.py`).
"""
