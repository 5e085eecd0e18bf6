"""Record: the ledger, where the position is kept. `ledger` is the port and the pure states; beside it, one per store."""
