"""Where Java is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def java() -> str | None:
    """The Java that Spark takes, so that one installation serves all."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
