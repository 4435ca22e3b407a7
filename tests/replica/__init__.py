"""Replicas: the partitions, their delayed fetches, append queues and group commits."""
