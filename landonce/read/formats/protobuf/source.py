"""Where the message types of records come from: descriptors, a `.proto` file, or a schema registry.

`ProtobufSource` is plain data, so that a recipe can carry it to the workers. Nothing here imports the packages of the extra
`protobuf` before they are needed.
"""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from landonce.errors import ConfigError, SourceUnavailable
from landonce.protocol.reasons import Code, Reason
from landonce.read.formats.protobuf.wire import Frame
from landonce.read.schema.registry import Registered, Registry, UnknownSchema

Descriptor = Any
"""A message descriptor of `google.protobuf`."""
_SAFE = "No record was read."
_PROTOC_SECONDS = 60
CONFLUENT = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
}
"""What registered schemas may import without a reference: a Confluent registry brings these files."""
OWN = Path(__file__).parents[3] / "dedup.proto"
"""What any schema may import as `landonce/dedup.proto`."""


@dataclass(frozen=True)
class ProtobufSource:
    """Either ``descriptors`` (a serialized FileDescriptorSet) and the full name of a ``message`` in it, or a ``registry``.

    With a registry, each record names its schema and its message in Confluent's framing; if ``message`` is set, records of
    other messages are rejected.
    """

    descriptors: bytes = field(default=b"", repr=False)
    message: str | None = None
    registry: Registry | None = None

    @staticmethod
    def of_file(path: Path, message: str | None = None) -> ProtobufSource:
        """From a `.proto` file, whose imports are beside it, or from a descriptor set, which any other name means."""
        try:
            if path.suffix == ".proto":
                path.stat()  # protoc has other words for a file that is not there
                data = _protoc(path.name, [path.parent.resolve()], str(path))
            else:
                data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"the Protobuf schema {path} cannot be read: {error.strerror}.", safe=_SAFE) from None
        return ProtobufSource(data, message_in(Messages(data), message).full_name)


class Messages:
    """The messages of a FileDescriptorSet."""

    def __init__(self, descriptors: bytes) -> None:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError

        try:
            files = {each.name: each for each in FileDescriptorSet.FromString(descriptors).file}
        except DecodeError:
            raise ConfigError("the descriptors are not a FileDescriptorSet.", safe=_SAFE, command=_MAKE_SET) from None
        if not files:
            raise ConfigError("the descriptor set holds no file.", safe=_SAFE, command=_MAKE_SET)
        self._pool = DescriptorPool()
        self._main = list(files.values())[-1]
        added: set[str] = set()
        for name in files:
            self._add(name, files, added)

    def _add(self, name: str, files: Mapping[str, Any], added: set[str]) -> None:
        if name in added:
            return
        added.add(name)
        proto = files[name] if name in files else _well_known(name)
        for each in proto.dependency:
            self._add(each, files, added)
        try:
            self._pool.Add(proto)
        except TypeError as error:
            raise ConfigError(f"the descriptor of {name} is not valid: {error}.", safe=_SAFE) from None

    def names(self) -> list[str]:
        """The messages of the set's last file, which is the one that protoc was called for."""
        return [".".join(filter(None, (self._main.package, each.name))) for each in self._main.message_type]

    def find(self, name: str) -> Descriptor | None:
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError:
            return None

    def at(self, indexes: tuple[int, ...]) -> Descriptor | None:
        """The message that the indexes of Confluent's framing mean: the place in the file, then in each message around."""
        path, level = [self._main.package] if self._main.package else [], self._main.message_type
        for index in indexes:
            if index >= len(level):
                return None
            path.append(level[index].name)
            level = level[index].nested_type
        return self.find(".".join(path))


def message_class(descriptor: Descriptor) -> Any:
    """The class of a message's objects."""
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor)


def message_in(messages: Messages, name: str | None) -> Descriptor:
    """The message of this name; without a name, the only one."""
    listed = ", ".join(messages.names()) or "none"
    if name is None and len(messages.names()) == 1:
        (name,) = messages.names()
    if name is None:
        raise ConfigError(
            f"the Protobuf schema has several messages ({listed}), and none is chosen.",
            safe=_SAFE,
            command="name the message of the records under `source.kafka` in {file}",
        )
    found = messages.find(name)
    if found is None:
        raise ConfigError(f"the Protobuf schema has no message {name!r}. It has: {listed}.", safe=_SAFE)
    return found


def registered_message(registry: Registry, frame: Frame) -> Descriptor | Reason:
    """The message type that a framing names, or why its records are rejected. Errors of the registry itself are raised."""
    number = frame.schema_id
    try:
        found = registry.schema(number)
    except UnknownSchema:
        return _unknown(f"schema {number} is not in the registry")
    if found.kind != "PROTOBUF":
        return _unknown(f"schema {number} of the registry is {found.kind}, not PROTOBUF")
    messages = _compiled(found)
    if messages is None:
        return _unknown(f"schema {number} of the registry cannot be compiled")
    descriptor = messages.at(frame.indexes)
    return descriptor if descriptor is not None else _unknown(f"schema {number} has no message {list(frame.indexes)}")


def _unknown(words: str) -> Reason:
    return Reason(words, Code.UNKNOWN_SCHEMA)


def newest_messages(registry: Registry, subject: str) -> list[Descriptor]:
    """The messages of the newest schema of a subject; none if there is no such schema."""
    try:
        found = registry.latest(subject)
    except UnknownSchema:
        return []
    messages = _compiled(found) if found.kind == "PROTOBUF" else None
    if messages is None:
        return []
    return [each for each in map(messages.find, messages.names()) if each is not None]


@lru_cache(maxsize=1024)
def _compiled(found: Registered) -> Messages | None:
    try:
        return Messages(compile_text(found.text, dict(found.referenced)))
    except ConfigError:
        return None


def compile_text(text: str, imports: Mapping[str, str]) -> bytes:
    """A FileDescriptorSet of the text of a `.proto` file; its imports are texts, too. Raises `ConfigError` only for what is
    wrong with the texts or their names."""
    try:
        return _compile_text(text, imports)
    except OSError as error:
        if error.errno in _BAD_NAME:
            raise ConfigError("a Protobuf schema imports a file whose name is not valid.", safe=_SAFE) from None
        raise _not_compiled(error.strerror or type(error).__name__) from None
    except ValueError:
        raise ConfigError("a Protobuf schema, or the name of one, is not valid text.", safe=_SAFE) from None


_BAD_NAME = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


def _compile_text(text: str, imports: Mapping[str, str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="landonce-proto-") as folder:
        root = Path(folder).resolve()
        main = "landonce_main.proto"
        for name, each in {**CONFLUENT, **imports, main: text}.items():
            target = (root / name).resolve()
            if not target.is_relative_to(root):
                raise ConfigError("a Protobuf schema imports a file outside of its folder.", safe=_SAFE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(each, encoding="utf-8")
        return _protoc(main, [root], "the registered schema")


def _protoc(name: str, folders: Iterable[Path], what: str) -> bytes:
    """In a process of its own, because protoc prints its errors. What protoc says about the file is `ConfigError`; any other
    failure may pass, and is `SourceUnavailable`."""
    with tempfile.TemporaryDirectory(prefix="landonce-protoc-") as folder:
        out = Path(folder) / "descriptors"
        own = Path(folder) / "landonce" / OWN.name
        own.parent.mkdir()
        own.write_bytes(OWN.read_bytes())
        paths = [f"-I{each}" for each in (*folders, *_includes(), folder)]
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            *paths,
            "--include_imports",
            f"--descriptor_set_out={out}",
        ]
        try:
            done = subprocess.run(
                [*command, name],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_PROTOC_SECONDS,
                check=False,
            )
            if not done.returncode:
                return out.read_bytes()
        except subprocess.TimeoutExpired:
            raise _not_compiled(f"protoc did not end in {_PROTOC_SECONDS} s") from None
        except OSError as error:
            raise _not_compiled(error.strerror or type(error).__name__) from None
    if done.returncode > 0 and re.search(rf"^(?:.*/)?{re.escape(name)}:(?:\d+:\d+:)? (?!warning:)", done.stderr, re.M):
        raise ConfigError(f"{what} cannot be compiled:\n{done.stderr.strip()}", safe=_SAFE)
    if done.returncode < 0:
        raise _not_compiled(f"signal {-done.returncode} ended protoc")
    raise _not_compiled(f"protoc failed: {done.stderr.strip().rpartition(chr(10))[2][:200]}")


def _not_compiled(why: str) -> SourceUnavailable:
    return SourceUnavailable(f"a Protobuf schema was not compiled: {why}.", safe="Nothing was skipped.")


def _includes() -> list[Path]:
    """The folders of `google/protobuf/*.proto` and of `google/type/*.proto`."""
    found = []
    for package, inside in (("grpc_tools", "_proto"), ("google.type", "../..")):
        spec = find_spec(package)
        for each in (spec.submodule_search_locations if spec is not None else None) or []:
            found.append((Path(each) / inside).resolve())
    return found


def _well_known(name: str) -> Any:
    """A file that a descriptor set may lack, because every Protobuf library has it."""
    from google.protobuf import (
        any_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        if module.DESCRIPTOR.name == name:
            proto = FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(proto)
            return proto
    raise ConfigError(f"the descriptor set lacks {name}, which another file imports.", safe=_SAFE, command=_MAKE_SET)


_MAKE_SET = "protoc --include_imports --descriptor_set_out=FILE YOUR.proto"
