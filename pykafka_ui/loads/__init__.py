"""The loads of `--loads URL…`: what was loaded, what is hidden or was killed, and whether it can be verified."""
