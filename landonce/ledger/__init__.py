"""The ledger: where the position is kept. One module per store; the port and the states are `protocol.ledger`."""
