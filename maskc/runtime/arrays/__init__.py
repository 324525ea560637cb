"""Arrays of any library as pointer, shape and strides."""
