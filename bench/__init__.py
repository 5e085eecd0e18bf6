"""The benchmark: landonce against its peers, on one machine, on one topic, in one run.

Ratios of things measured side by side; never an assertion. Run it with `make bench`.
"""
