"""A worked example of a landonce plug-in: a sink and a ledger, offered by entry point and proved by the contract kit."""
