"""The pure part of client quotas."""
