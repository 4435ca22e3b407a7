"""ZooKeeper, membership, topics, and the partitions this broker leads."""
