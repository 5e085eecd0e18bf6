"""Commit: what makes a written batch count. The account of every record, and the dead letters."""
