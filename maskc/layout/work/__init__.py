"""The schedule of tiles: work lists, deterministic order, counts."""
