"""Parts of a pipeline file that every layer may use: sections, small values, secrets."""
