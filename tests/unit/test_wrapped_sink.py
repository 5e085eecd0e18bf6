"""What a wrapped sink declares, what a block is made of, and how a sink is found by its name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

import landonce
from landonce.config.secrets import redact
from landonce.errors import ConfigError
from landonce.ledger.block_ledgers import PushPlace
from landonce.protocol.blocks import Block, Identity, block_key
from landonce.protocol.ranges import Partition, Range
from landonce.read.decoding import Decoding
from landonce.read.kafka.records import NoRecords
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.pipeline_file import parse
from landonce.sinks.wrapped import sink as find
from landonce.sinks.wrapped.block import pushed_rows
from landonce.sinks.wrapped.config import Wrapped
from landonce.sinks.wrapped.sink import find_sink, need_picklable
from landonce.sinks.wrapped.worker import WrappedRecipe

ROWS = 11


def table() -> pa.Table:
    """Every kind of value, with nulls over different garbage."""

    def some(*values: object) -> list[object]:
        return [values[at % len(values)] if at % 3 else None for at in range(ROWS)]

    return pa.table(
        {
            "_topic": pa.array(["t"] * ROWS).dictionary_encode(),
            "_partition": pa.array([0] * ROWS, pa.int32()),
            "_offset": pa.array(range(ROWS)),
            "flag": pa.array(some(True, False)),
            "small": pa.array(some(1, 2), pa.int16()),
            "real": pa.array(some(1.5, -0.25)),
            "text": pa.array(some("a", "grüße", "")),
            "money": pa.array(some(Decimal("1.25")), pa.decimal128(10, 2)),
            "at": pa.array(some(1, 2), pa.timestamp("us", "UTC")),
            "fine": pa.array(some(1, 2), pa.timestamp("ns")),
            "day": pa.array(some(1, 2), pa.int32()).cast(pa.date32()),
            "raw": pa.array(some(b"\x00x", b"")),
            "fixed": pa.array(some(b"ab"), pa.binary(2)),
            "list": pa.array(some([1, None], []), pa.list_(pa.int64())),
            "inner": pa.array(some({"x": 1}, {"x": None})),
            "times": pa.array(some([1, None], []), pa.list_(pa.timestamp("us", "UTC"))),
            "named": pa.array(
                some([("a", 1)], []), pa.map_(pa.string(), pa.field("value", pa.date32(), nullable=False))
            ),
            "word": pa.array(some("a", "b")).dictionary_encode(),
        }
    )


def block(rows: pa.Table) -> landonce.PushedBlock:
    return landonce.PushedBlock("k", "t", 0, 0, ROWS, pushed_rows(rows))


@given(st.lists(st.integers(0, ROWS), max_size=4))
def test_a_block_is_the_same_bytes_however_it_was_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), ROWS]
    pieces = [table().slice(a, b - a) for a, b in pairwise(edges)]
    whole, cut = block(table()), block(pa.concat_tables(pieces))
    assert cut.ipc() == whole.ipc()
    assert cut.json_lines() == whole.json_lines()


def test_what_lies_under_a_null_does_not_show() -> None:
    """Two arrays that are equal and hold other bytes where they hold nothing."""
    valid = pa.py_buffer(bytes([0b11110101]))
    clean, dirty = (
        pa.Array.from_buffers(pa.int64(), 4, [valid, pa.array([1, garbage, 3, garbage]).buffers()[1]])
        for garbage in (0, 77)
    )
    assert clean.equals(dirty)
    rows = [table().slice(0, 4).append_column("x", each) for each in (clean, dirty)]
    assert block(rows[0]).ipc() == block(rows[1]).ipc()


def test_a_block_comes_back_as_it_was() -> None:
    made = block(table())
    assert pa.ipc.open_stream(made.ipc()).read_all().equals(made.rows)
    lines = [json.loads(line) for line in made.json_lines().splitlines()]
    assert len(lines) == ROWS
    assert lines[1]["money"] == "1.25"
    assert lines[2]["inner"] == {"x": 1}
    assert lines[0]["text"] is None


def test_values_that_python_and_json_lack_come_back_too() -> None:
    """One that could not be said would fail in the user's function, where nobody knows then whether something arrived."""
    late = 253402300800000000
    made = block(
        pa.table(
            {
                "_topic": ["t"] * 3,
                "real": [float("nan"), float("-inf"), 1.5],
                "reals": [[float("inf"), 1.0], None, []],
                "late": pa.array([late, None, 0], pa.timestamp("us", "UTC")),
                "lates": pa.array([[late], None, []], pa.list_(pa.timestamp("us", "UTC"))),
                "struct": pa.array([{"at": late}, None, {"at": None}], pa.struct([("at", pa.timestamp("us"))])),
            }
        )
    )
    lines = [json.loads(line, parse_constant=pytest.fail) for line in made.json_lines().splitlines()]
    assert [line["real"] for line in lines] == ["NaN", "-Infinity", 1.5]
    assert lines[0]["reals"] == ["Infinity", 1.0]
    assert lines[0]["lates"] == [lines[0]["late"]] == ["10000-01-01 00:00:00.000000Z"]
    assert lines[0]["struct"] == {"at": "10000-01-01 00:00:00.000000"}
    read = pa.ipc.open_stream(made.ipc()).read_all()
    assert read.drop(["real"]).equals(made.rows.drop(["real"]))
    assert read.column("lates").type == made.rows.column("lates").type


def test_a_plan_is_not_pushed_by_another_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose bytes may be others, though the rows are the same."""
    recipe = WrappedRecipe(
        pipeline="p",
        records=NoRecords(),
        source=parse_schema("id BIGINT"),
        target=parse_schema("id BIGINT"),
        sink=landonce.wrap(print, idempotent=True),
        ledger=PushPlace(tmp_path, "p"),
        dead_letters=tmp_path,
        decoding=Decoding(max_record_bytes=1),
        block_bytes=1,
    )
    now = recipe.fingerprint()
    assert recipe.fingerprint() == now
    assert replace(recipe, block_bytes=2).fingerprint() == now, "the plan says how blocks are cut"
    monkeypatch.setattr(pa, "__version__", "999")
    assert recipe.fingerprint() != now


def test_a_key_names_a_range_for_ever() -> None:
    one = Identity("p", "lineage", "c", (("t", "id"),))
    ranges = [Range(Partition("t", 0), 0, 5), Range(Partition("t", 0), 0, 6), Range(Partition("t", 1), 0, 5)]
    keys = [block_key(each, Block((r,), "s"), "t@x") for r in ranges for each in (one, Identity("q", "l", "c", ()))]
    assert len(set(keys)) == len(keys)
    assert keys[0] == block_key(one, Block((ranges[0],), "s", number=7), "t@x")
    assert keys[0].startswith("t@x-0-0-5-")
    assert len(block_key(one, Block((ranges[0],), "s"), "t" * 249)) < 200


class Sink:
    opened = False

    def open(self) -> None:
        self.opened = True

    def push(self, block: landonce.PushedBlock) -> None: ...

    def probe(self, block: landonce.PushedBlock) -> bool:
        return self.opened

    def close(self) -> None:
        raise OSError("cannot change what is known")


def test_what_a_sink_declares() -> None:
    assert landonce.wrap(Sink(), idempotent=False).can_probe
    assert not landonce.wrap(Sink(), idempotent=True).can_probe
    assert not landonce.wrap(lambda _: None, idempotent=False).can_probe
    assert landonce.wrap(lambda _: None, idempotent=False, probe=lambda _: True).can_probe
    assert landonce.wrap(Sink, idempotent=True).name == "Sink"
    assert landonce.wrap(Sink, idempotent=False, settles_within=60).wait == 70_000
    assert landonce.wrap(Sink, idempotent=False, settles_within=1).wait == 2_000
    with landonce.wrap(Sink, idempotent=False).opened() as delivery:
        assert delivery.probe is not None
        assert delivery.probe(block(table()))


def test_the_pipeline_file_says_which_sink_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import landonce\ndef made(**_):\n    return landonce.wrap(print, idempotent=True, name='made')\nother = made\n"
    )
    (tmp_path / "file_sinks.py").write_text(code)
    (tmp_path / "rival_sinks.py").write_text(code)
    try:
        named = [
            ("file_sinks:made", {"url": "http://one", "retries": 3}),
            ("file_sinks:made", {"url": "http://two", "retries": 3}),
            ("file_sinks:made", {}),
            ("file_sinks:other", {}),
        ]
        found = [find_sink(name, options, tmp_path).identity for name, options in named]
        assert len(set(found)) == len(found)
        assert found[0] == find_sink("file_sinks:made", {"retries": 3, "url": "http://one"}, tmp_path).identity
        secret = {"retries": 3, "url": "http://me:word@one", "api_token": "word"}
        assert found[0] == find_sink("file_sinks:made", secret, tmp_path).identity, "a new password is no other target"
        offered = []
        for module in ("file_sinks", "rival_sinks"):
            find_sink(f"{module}:made", {}, tmp_path)
            monkeypatch.setattr(find, "plug_in", lambda *_, module=module, **__: sys.modules[module].made)
            offered.append(find_sink("made", {}, tmp_path).identity)
        assert len({*offered, *found}) == len(offered) + len(found), "another package offers a plug-in of that name now"
    finally:
        for name in ("file_sinks", "rival_sinks"):
            sys.modules.pop(name, None)


class Arguments:
    """Needs one to be made, and has a push that takes none."""

    def __init__(self, where: str) -> None:
        self.where = where

    def push(self) -> None: ...


class Waiting:
    """Calling any of these runs nothing: every block would count as landed."""

    async def push(self, block: landonce.PushedBlock) -> None: ...

    async def __call__(self, block: landonce.PushedBlock) -> None: ...

    async def coroutine(self) -> None: ...

    def generator(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"push": print}, "whether pushing the same block again is harmless"),
        ({"push": 7, "idempotent": True}, "neither a function"),
        ({"push": dict, "idempotent": True}, "neither a function"),
        ({"push": print, "idempotent": False, "probe": True}, "`probe` is a function"),
        ({"push": print, "idempotent": False, "settles_within": 0}, "`settles_within` is a number"),
        ({"push": print, "idempotent": False, "settles_within": float("inf")}, "`settles_within` is a number"),
        ({"push": print, "idempotent": False, "settles_within": float("nan")}, "`settles_within` is a number"),
        ({"push": print, "idempotent": False, "settles_within": "60s"}, "`settles_within` is a number"),
        ({"push": Waiting.coroutine, "idempotent": True}, "`push` is a coroutine or a generator"),
        ({"push": Waiting.generator, "idempotent": True}, "`push` is a coroutine or a generator"),
        ({"push": Waiting, "idempotent": True}, "`push` is a coroutine or a generator"),
        ({"push": Waiting(), "idempotent": True}, "`push` is a coroutine or a generator"),
        ({"push": Waiting().__call__, "idempotent": True}, "`push` is a coroutine or a generator"),
        ({"push": print, "idempotent": False, "probe": Waiting.coroutine}, "`probe` is a coroutine or a generator"),
        ({"push": lambda: None, "idempotent": True}, "`push` takes one argument, the block"),
        ({"push": lambda _, __: None, "idempotent": True}, "`push` takes one argument, the block"),
        ({"push": print, "idempotent": False, "probe": lambda: True}, "`probe` takes one argument, the block"),
        ({"push": Arguments, "idempotent": True}, "the class is called without arguments"),
        ({"push": Arguments("x"), "idempotent": True}, "`push` takes one argument, the block"),
    ],
)
def test_what_is_refused(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        landonce.wrap(**arguments)  # type: ignore[arg-type]


class Kinds:
    """All of these can be called with a block."""

    @staticmethod
    def push(_: landonce.PushedBlock) -> None: ...

    @classmethod
    def probe(cls, _: landonce.PushedBlock, *, again: bool = False) -> bool:
        return again


def test_whatever_takes_a_block_is_taken() -> None:
    for each in (Kinds, Kinds(), print, lambda _, __=1: None, lambda *_: None):
        landonce.wrap(each, idempotent=False)


def test_a_sink_is_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "own_sinks.py").write_text(
        "import landonce\n"
        "ready = landonce.wrap(print, idempotent=True, name='ready')\n"
        "def made(where, **more):\n    return landonce.wrap(lambda block: where, idempotent=True, name=where)\n"
        "other = 7\n"
        "def broken():\n    raise ValueError('no')\n"
        "def nothing():\n    pass\n"
    )
    path = list(sys.path)
    try:
        assert find_sink("own_sinks:ready", {}, tmp_path).name == "ready"
        made = find_sink("own_sinks:made", {"where": "here"}, tmp_path)
        assert made.name == "here"
        need_picklable(made)
        for name, options, says in (
            ("own_sinks:ready", {"x": 1}, "takes no options"),
            ("own_sinks:made", {}, "missing 1 required"),
            ("own_sinks:other", {}, "neither a sink nor"),
            ("own_sinks:broken", {}, "failed: ValueError: no"),
            ("own_sinks:nothing", {}, "is not a sink"),
            ("own_sinks:absent", {}, "has no 'absent'"),
            ("not_there:x", {}, "cannot be imported"),
            ("not-there", {}, "there is no plug-in 'not-there'"),
        ):
            with pytest.raises(ConfigError, match=says):
                find_sink(name, options, tmp_path)
        assert sys.path == path
    finally:
        sys.modules.pop("own_sinks", None)


def test_modules_beside_the_file_travel_together(tmp_path: Path) -> None:
    """A worker on another machine has none of them: neither the module, nor those beside it that it imports."""
    place, package = tmp_path / "place", tmp_path / "place" / "beside_package"
    package.mkdir(parents=True)
    (place / "beside_helper.py").write_text("def size(block):\n    return len(block)\n")
    (place / "beside_other.py").write_text("WORD = 'word'\n")
    (package / "__init__.py").write_text("")
    (package / "base.py").write_text("class Base:\n    def open(self):\n        self.ready = True\n")
    (package / "sinks.py").write_text(
        "import beside_other\nimport landonce\nfrom beside_helper import size\nfrom beside_package.base import Base\n"
        "class Sink(Base):\n    def push(self, block):\n        print(self.ready, size(block), beside_other.WORD)\n"
        "sink = landonce.wrap(Sink, idempotent=True)\n"
    )
    try:
        sink = find_sink("beside_package.sinks:sink", {}, place)
        (tmp_path / "sink").write_bytes(cloudpickle.dumps(sink))
    finally:
        for name in [each for each in sys.modules if each.startswith("beside_")]:
            del sys.modules[name]
    code = "import pickle, sys\nwith pickle.load(open('sink', 'rb')).opened() as it: it.push('four')\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True 4 word\n", "")


def test_a_module_of_another_folder_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Two pipelines in one program, each with a `twin_sink.py` of its own: the second would push to the first one's target."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twin_sink.py").write_text(
            f"import landonce\nsink = landonce.wrap(print, idempotent=True, name='{folder}')\n"
        )
    try:
        for _ in range(2):
            assert find_sink("twin_sink:sink", {}, tmp_path / "one").name == "one"
        with pytest.raises(ConfigError, match=r"a module of that name was loaded from .*one/twin_sink.py before"):
            find_sink("twin_sink:sink", {}, tmp_path / "two")
    finally:
        sys.modules.pop("twin_sink", None)


def test_a_script_that_leaves_is_named(tmp_path: Path) -> None:
    """One that ends by `sys.exit` when it is imported, or made, would end landonce without a word."""
    (tmp_path / "leaving_sink.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "leaving_later.py").write_text("import sys\ndef make():\n    sys.exit(0)\n")
    for name, says in (
        ("leaving_sink:sink", "cannot be imported: SystemExit"),
        ("leaving_later:make", "failed: SystemExit"),
    ):
        with pytest.raises(ConfigError, match=says):
            find_sink(name, {}, tmp_path)


def test_two_packages_that_offer_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them gets the records would depend on the order of folders in a path."""
    for name in ("rival_a", "rival_b"):
        (tmp_path / f"{name}.py").write_text("import landonce\nsink = landonce.wrap(print, idempotent=True)\n")
        package = tmp_path / f"{name}-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text(f"[landonce.sinks]\nrivals = {name}:sink\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"2 packages offer a plug-in 'rivals': rival_a:sink of rival_a 1.0; rival_b:"
    ):
        find_sink("rivals", {}, tmp_path)


def test_a_sink_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugged_sink.py").write_text(
        "import landonce\ndef make(to):\n    return landonce.wrap(print, idempotent=True, name=to)\n"
    )
    package = tmp_path / "plugged-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[landonce.sinks]\nplugged = plugged_sink:make\nbroken = not_there:x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_sink("plugged", {"to": "there"}, Path("/nowhere")).name == "there"
    with pytest.raises(ConfigError, match=r"the plug-in 'broken' \(not_there:x of plugged 1.0\) cannot be loaded"):
        find_sink("broken", {}, Path("/nowhere"))
    with pytest.raises(ConfigError, match=r"installed packages offer .*plugged"):
        find_sink("plugged2", {}, Path("/nowhere"))


def test_what_a_pipeline_file_says_of_it(tmp_path: Path) -> None:
    """Options are the sink's own business; what looks like a secret is not shown."""
    text = (
        "pipeline: p\nsource: {kafka: {bootstrap_servers: b, topics: [t]}}\n"
        "sink: {wrapped: {sink: 'm:n', options: {hosts: [a, b], deep: {list: [1], token: hush-hush}, url: 'http://x', "
        "replicas: [{password: inner-word}]}}}\n"
    )
    section = parse(text, tmp_path / "p.yaml").sink
    assert isinstance(section, Wrapped)
    assert (section.sink, section.folder) == ("m:n", tmp_path)
    assert section.options["hosts"] == ["a", "b"]
    assert redact("it is hush-hush and inner-word") == "it is *** and ***"
    assert "hush-hush" not in repr(section)
    with pytest.raises(ConfigError, match="name one sink: clickhouse, iceberg, sql or wrapped"):
        parse(text.replace("{wrapped:", "{sql: {url: 'sqlite:///x', table: t}, wrapped:"), tmp_path / "p.yaml")
