"""The meaning of masks and of attention, slow and obvious: what all else is tested against."""
