"""The processes of a service: a small supervisor, and workers that are whole services.

Workers listen on the same ports (SO_REUSEPORT) and follow one desired-state file. A private run
directory passes the settings down and the workers' heartbeats and statuses up.
"""
