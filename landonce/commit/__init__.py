"""Commit: what makes a written batch count. For ClickHouse that is the account of every record and the dead letters."""
