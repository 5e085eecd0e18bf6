"""What records must look like, and how it is declared."""
