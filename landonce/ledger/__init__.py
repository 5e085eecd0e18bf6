"""Ledgers: they keep the position. `protocol.ledger` has the port and the states."""
