"""Records as people look for them, and their values as they read them."""
