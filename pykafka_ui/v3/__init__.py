"""REST under /api/v3, in the shapes of Confluent's REST Proxy v3, with fields of ours beside."""
