"""The ZooKeeper client and server, and what lies in ZooKeeper."""
