"""SQL databases as targets: rows and ledger change in one transaction."""
