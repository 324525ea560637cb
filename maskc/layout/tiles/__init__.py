"""From recipes and data to the exact live tiles."""
