"""Turns the signature and sizes of a call into plans of its launches, without arrays or devices."""
