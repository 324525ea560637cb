"""Kernel families: limits, tiles, registers and launches of each template folder."""
