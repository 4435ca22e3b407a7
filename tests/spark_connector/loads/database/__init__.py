"""Loads into tables of databases."""
