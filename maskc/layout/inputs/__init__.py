"""What a call gives, before any tile: parameters, data, captured arrays."""
