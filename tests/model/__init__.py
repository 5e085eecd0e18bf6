"""A model checker for the protocol: the production code decides, everything around it is a fake that may fail."""
