"""Small applications of frameworks, each run by a Python of its own: test_frameworks.py."""
