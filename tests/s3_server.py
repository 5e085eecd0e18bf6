"""A real S3 server in a folder: S3Proxy, which keeps objects as files, so that they survive its own `kill -9`.

It listens on loopback alone, and asks for signed requests, as S3 does.
"""

from collections.abc import Sequence
from pathlib import Path
from urllib.error import HTTPError, URLError

from landonce.jars import S3PROXY, class_path
from landonce.local.server import LOOPBACK, NO_PROXY, LocalJavaServer, properties

ACCESS_KEY = "landonce-tests"
SECRET_KEY = "not-a-secret-of-anybody"
BUCKET = "lake"


class LocalS3(LocalJavaServer):
    """One server with one bucket. The same folder means the same objects and port."""

    name = "the S3 server"
    port_names = ("http",)

    def __init__(self, folder: Path, *, heap: str = "256m", die_with_parent: bool = True) -> None:
        super().__init__(folder, ports={}, die_with_parent=die_with_parent)
        self._heap = heap

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self._port('http')}"

    @property
    def objects(self) -> Path:
        """Where the bucket's objects are, under their keys."""
        return self.folder / "buckets" / BUCKET

    def properties(self, endpoint: str = "") -> dict[str, str]:
        """As PyIceberg, and Iceberg's own S3 client, take them."""
        return {
            "s3.endpoint": endpoint or self.endpoint,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
        }

    def catalog(self, database: Path, prefix: str, endpoint: str = "") -> dict[str, str]:
        """A SQL catalog in a SQLite file, whose tables are in this bucket."""
        uri, warehouse = f"sqlite:///{database}", f"s3://{BUCKET}/{prefix}"
        return {"type": "sql", "uri": uri, "warehouse": warehouse, **self.properties(endpoint)}

    def _prepare(self) -> None:
        self.objects.mkdir(parents=True, exist_ok=True)
        config = {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ACCESS_KEY,
            "s3proxy.credential": SECRET_KEY,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self.folder / "buckets"),
        }
        (self.folder / "s3proxy.properties").write_text(properties(config))
        self._prepare_java({})

    def _command(self) -> Sequence[str]:
        jars = class_path(S3PROXY, from_pyspark=("slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl"))
        return self._java(jars, f"-Xmx{self._heap}", "org.gaul.s3proxy.Main", "--properties", "s3proxy.properties")

    def _answers(self) -> bool:
        """Nobody may look without a signature."""
        try:
            NO_PROXY.open(f"{self.endpoint}/{BUCKET}", timeout=2).close()
        except HTTPError as error:
            return error.code == 403
        except (URLError, OSError):
            return False
        return True
