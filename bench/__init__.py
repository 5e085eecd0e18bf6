"""The benchmark: landonce against its peers, on one machine, on one topic, in one run.

Ratios of things measured side by side; never an assertion. Run it with `make bench`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # servers that only tests and benchmarks need
