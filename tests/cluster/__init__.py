"""Tests of broker/cluster, against a real ZooKeeper where one is spoken to."""
