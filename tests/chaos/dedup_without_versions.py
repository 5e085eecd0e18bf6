"""`landonce` whose store commits whatever was compared, though another pipeline may have accepted events since: the control of the races."""

from __future__ import annotations

from landonce.cli import main
from landonce.dedup import store

store.may_commit = lambda *_: True
main()
