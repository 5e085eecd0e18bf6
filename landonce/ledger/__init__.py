"""Ledgers: they keep the position. One module per store; `protocol.ledger` has the port and the states."""
