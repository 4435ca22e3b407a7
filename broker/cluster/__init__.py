"""Topics, settings and users of the cluster, and the changes that other brokers make to them."""
