"""Finds the exact live tiles of recipes and data."""
