"""Reading the checkpoint folder of a streaming query, wherever the catalog's files may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO

from landonce.config.secrets import redact
from landonce.sinks.iceberg.move_in.found import refused
from landonce.sinks.iceberg.move_in.query import Checkpoint


@dataclass(frozen=True)
class CheckpointFolder:
    """A path, or a URI that the catalog's properties open too."""

    location: str
    properties: Mapping[str, str] = field(repr=False)

    def read(self) -> Checkpoint:
        """As it is now."""
        try:
            query = json.loads(self._text("metadata"))["id"]
        except (ValueError, KeyError, TypeError):
            raise self._unfit("its `metadata` does not name a query") from None
        return Checkpoint(
            location=self.location,
            query=query,
            planned=self._batches("offsets"),
            done=self._batches("commits"),
            stateful=bool(self._names("state")),
        )

    def entry(self, batch: int) -> str:
        """What the offset log says of a batch."""
        return self._text(f"offsets/{batch}")

    def _batches(self, folder: str) -> tuple[int, ...]:
        return tuple(sorted(int(name) for name in self._names(folder) if name.isdigit()))

    def _names(self, folder: str) -> tuple[str, ...]:
        files, root = self._opened()
        try:
            found = files.get_file_info(fs.FileSelector(f"{root}/{folder}", allow_not_found=True))
        except OSError as error:
            raise self._unfit(str(error)) from None
        return tuple(each.base_name for each in found)

    def _text(self, path: str) -> str:
        files, root = self._opened()
        try:
            with files.open_input_stream(f"{root}/{path}") as stream:
                return str(stream.read().decode())
        except (OSError, UnicodeDecodeError) as error:
            raise self._unfit(str(error)) from None

    def _opened(self) -> tuple[fs.FileSystem, str]:
        scheme, host, path = PyArrowFileIO.parse_location(self.location)
        try:
            return PyArrowFileIO(dict(self.properties)).fs_by_scheme(scheme, host), path.rstrip("/")
        except (OSError, ValueError) as error:
            raise self._unfit(str(error)) from None

    def _unfit(self, why: str) -> Exception:
        return refused(
            f"{self.location} is not the checkpoint of a streaming query, or cannot be read: {redact(why)}",
            "name the query's `checkpointLocation` with --from-checkpoint",
        )
