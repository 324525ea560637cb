"""Tile lists that are made on the device, just before the pass that reads them."""
