"""A real Iceberg REST catalog in a folder, for the tests: Iceberg's own reference servlet on Jetty.

It never listens beyond loopback. Iceberg's own launcher of that servlet listens on all interfaces without a
password, so this module configures Jetty itself. A SQLite file in the folder keeps the tables; they survive a crash.
It is not for production.
"""

import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from xml.sax.saxutils import escape

from landonce.jars import ICEBERG_REST, class_path
from landonce.local.jvm import HADOOP_AND_LOGS, java_command, java_environment, prepare_java
from landonce.local.ports import LOOPBACK
from landonce.local.server import LocalServer

_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class LocalRestCatalog(LocalServer):
    """One catalog. The same folder means the same tables and port."""

    name = "the REST catalog"
    port_names = ("http",)

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        catalog_name: str = "landonce",
        heap: str = "256m",
        die_with_parent: bool = True,
    ) -> None:
        """A SQL catalog that is opened under `catalog_name` on `database` has the same tables."""
        super().__init__(folder, ports={"http": port}, die_with_parent=die_with_parent)
        self.catalog_name = catalog_name
        self._heap = heap

    @property
    def uri(self) -> str:
        return f"http://{LOOPBACK}:{self._port('http')}"

    @property
    def properties(self) -> dict[str, str]:
        """What PyIceberg and Iceberg's own clients need to open it."""
        return {"type": "rest", "uri": self.uri}

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def database(self) -> Path:
        return self.folder / "catalog.db"

    def _prepare(self) -> None:
        self.warehouse.mkdir(exist_ok=True)
        (self.folder / "jetty.xml").write_text(self._jetty_xml())
        prepare_java(self.folder, {"org.eclipse.jetty.server.AbstractConnector": "INFO"})

    def _command(self) -> Sequence[str]:
        jars = class_path(ICEBERG_REST, from_pyspark=HADOOP_AND_LOGS)
        # Validation would require a document type.
        options = [f"-Xmx{self._heap}", "-Dorg.eclipse.jetty.xml.XmlParser.Validating=false"]
        return java_command(self.folder, jars, *options, "org.eclipse.jetty.xml.XmlConfiguration", "jetty.xml")

    def _environment(self) -> Mapping[str, str]:
        return java_environment()

    def _answers(self) -> bool:
        """The log shows that this server, not another one, has the port."""
        started = f"{{{LOOPBACK}:{self._port('http')}}}"
        if not self.log.exists() or started not in self.log.read_bytes()[self._log_start :].decode(errors="replace"):
            return False
        try:
            with _NO_PROXY.open(f"{self.uri}/v1/config", timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _jetty_xml(self) -> str:
        properties = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{self.database}?busy_timeout=20000",
            "jdbc.schema-version": "V1",
            "warehouse": self.warehouse.as_uri(),
        }
        entries = "".join(
            f"<Entry><Item>{escape(name)}</Item><Item>{escape(value)}</Item></Entry>"
            for name, value in properties.items()
        )
        catalog = (
            '<Call class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">'
            f"<Arg>{escape(self.catalog_name)}</Arg><Arg><Map>{entries}</Map></Arg>"
            '<Arg><New class="org.apache.hadoop.conf.Configuration"/></Arg></Call>'
        )
        servlet = _new(
            "org.eclipse.jetty.ee10.servlet.ServletHolder",
            _new(
                "org.apache.iceberg.rest.RESTCatalogServlet",
                _new("org.apache.iceberg.rest.RESTCatalogAdapter", catalog),
            ),
        )
        return f"""\
<Configure id="Server" class="org.eclipse.jetty.server.Server">
  <Call name="addConnector"><Arg><New class="org.eclipse.jetty.server.ServerConnector">
    <Arg><Ref refid="Server"/></Arg>
    <Set name="host">{LOOPBACK}</Set>
    <Set name="port">{self._port("http")}</Set>
  </New></Arg></Call>
  <Set name="handler"><New class="org.eclipse.jetty.ee10.servlet.ServletContextHandler">
    <Call name="addServlet"><Arg>{servlet}</Arg><Arg>/*</Arg></Call>
  </New></Set>
</Configure>
"""


def _new(class_name: str, argument: str) -> str:
    return f'<New class="{class_name}"><Arg>{argument}</Arg></New>'
