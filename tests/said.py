"""Whether something was said, word for word: "0 missing" is not in "10 missing", nor "1 row" in "1 rows"."""

from __future__ import annotations

import re


def says(text: str, words: str) -> bool:
    """Neither a word nor a number goes on where `words` begin or end. Where lines are broken does not matter."""
    wanted = re.escape(" ".join(words.split()))
    return re.search(rf"(?<![\w.,-]){wanted}(?!\w)", " ".join(text.split())) is not None
