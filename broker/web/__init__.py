"""The HTTP listener: /metrics and /healthz; loaded only when `metrics.listener` is set."""
