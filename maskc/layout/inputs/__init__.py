"""Inputs of a call, before any tile: parameters, data, captured arrays."""
