"""One folder per format: bytes become Arrow columns, or a reject with a reason."""
