"""Client quotas: rates, limits, and how long a client is throttled. Pure: the time is an argument."""
