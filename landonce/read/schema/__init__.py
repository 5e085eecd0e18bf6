"""What records must look like: declared, inferred from a sample, evolved."""
