"""Sinks that a user wraps: a function or a class that gets blocks, claimed in the ledger before they are pushed."""
