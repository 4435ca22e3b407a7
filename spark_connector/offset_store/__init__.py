"""Where the offsets of a load or a query are kept: ZooKeeper, files, or the broker's groups."""
