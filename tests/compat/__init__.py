"""Real clients, unchanged, against the broker: one file per client."""
