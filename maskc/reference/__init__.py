"""The meaning of masks and of attention, slow and obvious; everything else is tested against it."""
