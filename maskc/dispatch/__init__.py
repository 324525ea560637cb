"""From the signature and sizes of a call to plans of its launches, without arrays or devices."""
