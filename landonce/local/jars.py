"""Brings the jars of a Kafka broker into a cache folder that all checkouts on the machine share.

`kafka-jars.txt` beside this file names every jar and its SHA-256. The Apache Ivy inside PySpark's jars fetches them, as it
does for `spark.jars.packages`. A jar whose hash differs is never used, and a half-filled folder is never seen: it is
filled beside its place and renamed into it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from landonce.errors import LocalStackError

KAFKA_VERSION = "4.1.1"
_LIST = Path(__file__).with_name("kafka-jars.txt")

Say = Callable[[str], None]


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


def cache_root() -> Path:
    return Path(os.environ.get("LANDONCE_CACHE") or Path.home() / ".cache" / "landonce")


def listed_jars() -> list[Jar]:
    lines = (line.split() for line in _LIST.read_text().splitlines() if line.strip())
    return [Jar(path, sha256) for sha256, path in lines]


def kafka_jars(say: Say = lambda _: None) -> Path:
    """The folder that holds the broker's jars; fetched on first use."""
    folder = cache_root() / f"kafka-{KAFKA_VERSION}"
    jars = listed_jars()
    if all((folder / jar.file_name).is_file() for jar in jars):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    say(f"fetching the {len(jars)} jars of Kafka {KAFKA_VERSION} into {folder} (once; about a minute)")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        filled = Path(temporary) / "jars"
        filled.mkdir()
        _fetch(jars, filled)
        _move_into_place(filled, folder)
    say(f"Kafka {KAFKA_VERSION} is ready")
    return folder


def _fetch(jars: list[Jar], folder: Path) -> None:
    _resolve_with_ivy(jars, folder)
    for jar in jars:
        if hashlib.sha256((folder / jar.file_name).read_bytes()).hexdigest() != jar.sha256:
            raise LocalStackError(f"{jar.file_name} differs from the one landonce was tested with; it was not used")


def _resolve_with_ivy(jars: list[Jar], folder: Path) -> None:
    ivy_file = folder.parent / "ivy.xml"
    ivy_file.write_text(ivy_module(jars))
    command = [java(), "-jar", str(_ivy_jar()), "-ivy", str(ivy_file), "-confs", "default"]
    command += ["-cache", str(folder.parent / "ivy-cache")]
    command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    missing = [jar.file_name for jar in jars if not (folder / jar.file_name).is_file()]
    if missing:
        reason = done.stderr.strip() or "\n".join(done.stdout.splitlines()[-5:])
        raise LocalStackError(
            f"cannot fetch Kafka {KAFKA_VERSION} with Apache Ivy ({len(missing)} of {len(jars)} jars missing): "
            f"check the network, or copy a filled folder to {cache_root() / f'kafka-{KAFKA_VERSION}'}. {reason}"
        )


def ivy_module(jars: list[Jar]) -> str:
    """An Ivy file that asks for exactly these jars and nothing they depend on."""
    wanted = "\n".join(
        f'    <dependency org="{org}" name="{name}" rev="{rev}" conf="default->default" transitive="false"/>'
        for org, name, rev in (jar.coordinates for jar in jars)
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="landonce" module="kafka-broker"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{wanted}\n  </dependencies>\n</ivy-module>\n"
    )


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise LocalStackError("PySpark's jars hold no Apache Ivy; install it with: pip install pyspark==4.0.0")
    return found[-1]


def java() -> str:
    """The Java that Spark would take, so that one installation serves both."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        raise LocalStackError("no Java found; install it with: apt-get install openjdk-17-jre-headless")
    return found


def _move_into_place(filled: Path, folder: Path) -> None:
    try:
        os.rename(filled, folder)
    except OSError:
        # Someone else was faster, or an incomplete folder is in the way: put each jar in its place in one step.
        for jar in filled.iterdir():
            os.replace(jar, folder / jar.name)


def main() -> None:
    """Fill the cache with progress on stderr; what `make setup` calls."""
    try:
        kafka_jars(lambda line: print(line, file=sys.stderr, flush=True))
    except LocalStackError as error:
        sys.exit(f"landonce: {error}")
