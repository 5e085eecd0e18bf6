"""Fetches sets of jars into a cache folder that all checkouts on the machine share.

A list beside this file, `<set>-jars.txt`, names every jar of a set and its SHA-256. The Apache Ivy inside PySpark's
jars fetches them, as it does for `spark.jars.packages`. A jar whose hash differs is never used, and a half-filled
folder is never seen: it is filled beside its place and renamed into it.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from xml.sax.saxutils import quoteattr

from landonce.errors import LocalStackError
from landonce.jvm import java

KAFKA_VERSION = "4.1.1"
ICEBERG_VERSION = "1.11.0"
SCHEMA_REGISTRY_VERSION = "3.0.9"
"""Of Apicurio, the last that runs on Java 17."""
S3PROXY_VERSION = "4.1.0"
SPARK_KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""Spark's own Kafka source, as queries name it in `spark.jars.packages`."""
SPARK_AVRO = "org.apache.spark:spark-avro_2.13:4.0.0"
"""Spark's own decoder of Avro, for queries."""

Say = Callable[[str], None]

# The lists are complete, so Ivy need not resolve dependencies: that takes a third of the time.
_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Jar:
    """One jar: its place in a Maven repository, and the SHA-256 of its bytes."""

    path: str
    sha256: str

    @property
    def file_name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def coordinates(self) -> tuple[str, str, str]:
        """Organisation, module and revision."""
        *organisation, module, revision, _ = self.path.split("/")
        return ".".join(organisation), module, revision

    @property
    def ending(self) -> str:
        """A server may come as an archive of its jars."""
        return "tar.gz" if self.path.endswith(".tar.gz") else "jar"

    @property
    def classifier(self) -> str:
        """Distinguishes the jars of one module; empty for the main one."""
        _, module, revision = self.coordinates
        return self.file_name.removeprefix(f"{module}-{revision}").removesuffix(f".{self.ending}").removeprefix("-")


@dataclass(frozen=True)
class JarSet:
    """The jars that one purpose needs."""

    name: str
    version: str
    shown: str

    @property
    def folder(self) -> Path:
        return cache_root() / f"{self.name}-{self.version}"

    def listed(self) -> list[Jar]:
        text = Path(__file__).with_name(f"{self.name}-jars.txt").read_text()
        return [Jar(path, sha256) for sha256, path in (line.split() for line in text.splitlines() if line.strip())]


KAFKA = JarSet("kafka", KAFKA_VERSION, "Kafka")
KAFKA_TOOLS = JarSet("kafka-tools", KAFKA_VERSION, "Kafka's own tools")
"""They need the jars of Kafka, too."""
ICEBERG_SPARK = JarSet("iceberg-spark", ICEBERG_VERSION, "Iceberg for Spark")
ICEBERG_AWS = JarSet("iceberg-aws", ICEBERG_VERSION, "Iceberg for S3")
ICEBERG_REST = JarSet("iceberg-rest", ICEBERG_VERSION, "Iceberg's REST catalog")
ICEBERG_CONNECT = JarSet("iceberg-connect", ICEBERG_VERSION, "Iceberg's sink for Kafka Connect")
SCHEMA_REGISTRY = JarSet("schema-registry", SCHEMA_REGISTRY_VERSION, "a schema registry")
S3PROXY = JarSet("s3proxy", S3PROXY_VERSION, "an S3 server")
_ALL = (KAFKA, KAFKA_TOOLS, ICEBERG_SPARK, ICEBERG_AWS, ICEBERG_REST, ICEBERG_CONNECT, SCHEMA_REGISTRY, S3PROXY)
SETS = {each.name: each for each in _ALL}


def cache_root() -> Path:
    return Path(os.environ.get("LANDONCE_CACHE") or Path.home() / ".cache" / "landonce")


def spark_jars(say: Say = lambda _: None, *, s3: bool = False) -> tuple[Path, ...]:
    """The jars with which Spark supports Iceberg, and catalogs in SQLite and PostgreSQL; fetched on first use. `s3`: and tables in S3."""
    return jars_of(ICEBERG_SPARK, say) + (jars_of(ICEBERG_AWS, say) if s3 else ())


def class_path(wanted: JarSet, *, from_pyspark: tuple[str, ...] = (), say: Say = lambda _: None) -> str:
    """The set for `java -cp`, followed by jars of PySpark, by the beginning of their names."""
    own = jars_of(wanted, say)
    theirs = [path for start in from_pyspark for path in _pyspark_jars(start)]
    return os.pathsep.join(map(str, (*own, *theirs)))


def jars_of(wanted: JarSet, say: Say = lambda _: None) -> tuple[Path, ...]:
    """The jars of a set, fetched on first use."""
    folder, jars = wanted.folder, wanted.listed()
    if not all((folder / jar.file_name).is_file() for jar in jars):
        _fill(wanted, jars, say)
    return tuple(folder / jar.file_name for jar in jars)


def _fill(wanted: JarSet, jars: list[Jar], say: Say) -> None:
    folder = wanted.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    say(f"fetching the {len(jars)} jars of {wanted.shown} {wanted.version} into {folder} (once; under a minute)")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        filled = Path(temporary) / "jars"
        filled.mkdir()
        _resolve_with_ivy(wanted, jars, filled)
        for jar in jars:
            if hashlib.sha256((filled / jar.file_name).read_bytes()).hexdigest() != jar.sha256:
                raise LocalStackError(f"{jar.file_name} differs from the one landonce was tested with; it was not used")
        try:
            os.rename(filled, folder)
        except OSError:
            # Someone else was faster, or an incomplete folder is in the way: put each jar in its place in one step.
            for each in filled.iterdir():
                os.replace(each, folder / each.name)
    say(f"{wanted.shown} {wanted.version} is ready")


def _resolve_with_ivy(wanted: JarSet, jars: list[Jar], folder: Path) -> None:
    ivy_file, settings = folder.parent / "ivy.xml", folder.parent / "ivysettings.xml"
    ivy_file.write_text(ivy_module(jars))
    settings.write_text(_IVY_SETTINGS)
    command = [need_java(), "-jar", str(_pyspark_jars("ivy")[-1]), "-settings", str(settings), "-ivy", str(ivy_file)]
    command += ["-confs", "default", "-cache", str(folder.parent / "ivy-cache")]
    command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    missing = [jar.file_name for jar in jars if not (folder / jar.file_name).is_file()]
    if missing:
        reason = done.stderr.strip() or "\n".join(done.stdout.splitlines()[-5:])
        raise LocalStackError(
            f"cannot fetch {wanted.shown} {wanted.version} with Apache Ivy ({len(missing)} of {len(jars)} jars "
            f"missing): check the network, or copy a filled folder to {wanted.folder}. {reason}"
        )


def ivy_module(jars: list[Jar]) -> str:
    """An Ivy file that asks for exactly these jars and nothing they depend on."""
    by_module = attrgetter("coordinates")
    wanted = "".join(
        _dependency(coordinates, list(group))
        for coordinates, group in groupby(sorted(jars, key=by_module), key=by_module)
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        '  <info organisation="landonce" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{wanted}  </dependencies>\n</ivy-module>\n"
    )


def _dependency(coordinates: tuple[str, str, str], jars: list[Jar]) -> str:
    organisation, module, revision = map(quoteattr, coordinates)
    artifacts = "".join(
        f'      <artifact name={module} type="{jar.ending}" ext="{jar.ending}"'
        f"{f' m:classifier={quoteattr(jar.classifier)}' if jar.classifier else ''}/>\n"
        for jar in jars
    )
    return (
        f'    <dependency org={organisation} name={module} rev={revision} conf="default->default" '
        f'transitive="false">\n{artifacts}    </dependency>\n'
    )


def _pyspark_jars(start: str) -> list[Path]:
    spec = find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob(f"jars/{start}-*.jar")) if spec and spec.origin else []
    if not found:
        raise LocalStackError(f"PySpark's jars hold no {start}; install it with: pip install pyspark==4.0.0")
    return found


def need_java() -> str:
    found = java()
    if found is None:
        raise LocalStackError("no Java found; install it with: apt-get install openjdk-17-jre-headless")
    return found


def main(*names: str) -> None:
    """Fill the cache with these sets, with progress on stderr; what `make setup` calls."""
    try:
        for name in names:
            jars_of(SETS[name], lambda line: print(line, file=sys.stderr, flush=True))
    except LocalStackError as error:
        sys.exit(f"landonce: {error}")
