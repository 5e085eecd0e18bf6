"""Pipeline files with one mistake each, and a few that are merely strange. What becomes of each is in `outcomes/files.txt`."""

from pathlib import Path

from landonce.errors import ConfigError
from landonce.sinks.pipeline_file import parse

_GOOD = {
    "pipeline": "clicks",
    "source": '{kafka: {bootstrap_servers: "k:9092", topics: [clicks]}}',
    "sink": '{sql: {url: "sqlite:///x.db", table: t}}',
}


def _file(**sections: str | None) -> str:
    return "".join(f"{name}: {text}\n" for name, text in {**_GOOD, **sections}.items() if text is not None)


def _kafka(more: str) -> str:
    return _file(source=f'{{kafka: {{bootstrap_servers: "k:9092", topics: [clicks], {more}}}}}')


_LAUGHS = "".join(f"{chr(98 + at)}: &{chr(98 + at)} [{', '.join([f'*{chr(97 + at)}'] * 9)}]\n" for at in range(9))
FILES: dict[str, str] = {
    "plain": _file(),
    "empty": "",
    "only a comment": "# nothing\n",
    "a list": "- a\n- b\n",
    "a text": "clicks\n",
    "a number": "7\n",
    "two documents": _file() + "---\n" + _file(),
    "not closed": "pipeline: [\n",
    "tabs": "pipeline:\n\tname: x\n",
    "bad indentation": "pipeline: x\n  source: y\n",
    "billion laughs": "a: &a [x, x, x, x, x, x, x, x, x]\n" + _LAUGHS + _file(),
    "alias of itself": "a: &a [*a]\n" + _file(),
    "unknown alias": _file(pipeline="*nobody"),
    "merge key": "base: &base {pipeline: x}\n<<: *base\n" + _file(pipeline=None),
    "python object": _file(pipeline="!!python/object/apply:os.system ['true']"),
    "unknown tag": _file(pipeline="!secret x"),
    "binary": _file(pipeline="!!binary aGVsbG8="),
    "key twice": _file() + "pipeline: again\n",
    "inner key twice": _file(source='{kafka: {topics: [a], topics: [b], bootstrap_servers: "k:1"}}'),
    "key is a list": _file() + "? [a, b]\n: c\n",
    "key is null": _file() + "~: x\n",
    "500 levels": _file(spark="{conf: " + "[" * 500 + "]" * 500 + "}"),
    "no pipeline": _file(pipeline=None),
    "no source": _file(source=None),
    "no sink": _file(sink=None),
    "pipeline empty": _file(pipeline='""'),
    "pipeline null": _file(pipeline="~"),
    "pipeline a number": _file(pipeline="7"),
    "pipeline with a slash": _file(pipeline="a/b"),
    "pipeline with a quote": _file(pipeline="a'; DROP TABLE x; --"),
    "pipeline with a line break": _file(pipeline='"a\\nb"'),
    "pipeline too long": _file(pipeline="x" * 101),
    "pipeline of dots": _file(pipeline=".."),
    "pipeline in Greek": _file(pipeline="κλικ"),
    "unknown section": _file() + "snik: {}\n",
    "typo in a key": _file(source='{kafka: {bootstrap_server: "k:1", topics: [a]}}'),
    "upper case key": _file() + "Ledger: {sqlite: x}\n",
    "source a list": _file(source="[kafka]"),
    "source empty": _file(source="{}"),
    "topics a text": _file(source='{kafka: {bootstrap_servers: "k:1", topics: clicks}}'),
    "topics empty": _file(source='{kafka: {bootstrap_servers: "k:1", topics: []}}'),
    "topic twice": _file(source='{kafka: {bootstrap_servers: "k:1", topics: [a, a]}}'),
    "topic null": _file(source='{kafka: {bootstrap_servers: "k:1", topics: [~]}}'),
    "servers empty": _file(source='{kafka: {bootstrap_servers: "", topics: [a]}}'),
    "servers a list": _file(source="{kafka: {bootstrap_servers: [k], topics: [a]}}"),
    "format unknown": _kafka("format: xml"),
    "format a list": _kafka("format: [json]"),
    "format null": _kafka("format: ~"),
    "two formats": _kafka("format: {json: {}, raw: {}}"),
    "CSV without columns": _kafka("format: csv"),
    "CSV column twice": _kafka("format: {csv: {columns: [a, a]}}"),
    "CSV long delimiter": _kafka('format: {csv: {columns: [a], delimiter: "||"}}'),
    "start unknown": _kafka("start: yesterday"),
    "size negative": _kafka("max_record_bytes: -1"),
    "size with a typo": _kafka("max_record_bytes: 16MegaBytes"),
    "size a boolean": _kafka("max_record_bytes: yes"),
    "reserved option": _kafka('options: {"group.id": x}'),
    "option a list": _kafka('options: {"client.id": [x]}'),
    "record column unknown": _kafka("record_columns: [_offset]"),
    "two sinks": _file(sink='{sql: {url: "sqlite:///x.db", table: t}, wrapped: {}}'),
    "sink unknown": _file(sink="{oracle: {}}"),
    "sink null": _file(sink="~"),
    "sink a text": _file(sink="sql"),
    "table empty": _file(sink='{sql: {url: "sqlite:///x.db", table: ""}}'),
    "URL without a scheme": _file(sink="{sql: {url: x.db, table: t}}"),
    "create a text": _file(sink='{sql: {url: "sqlite:///x.db", table: t, create: maybe}}'),
    "upsert without key": _file(sink='{sql: {url: "sqlite:///x.db", table: t, mode: upsert}}'),
    "coordinates": _file(sink='{sql: {url: "sqlite:///x.db", table: t, coordinates: false}}'),
    "missing variable": _file(pipeline="${LANDONCE_NO_SUCH_VARIABLE}"),
    "interval a word": _file(batch="{interval: soon}"),
    "interval negative": _file(batch="{interval: -1s}"),
    "rows zero": _file(batch="{max_rows: 0}"),
    "rows NaN": _file(batch="{max_rows: .nan}"),
    "rows infinite": _file(batch="{max_rows: .inf}"),
    "rows 1e400": _file(batch="{max_rows: 1e400}"),
    "rows a fraction": _file(batch="{max_rows: 1.5}"),
    "stall zero": _file(stall="0s"),
    "dedup without key": _file(dedup="{}"),
    "dedup key empty": _file(dedup="{key: []}"),
    "dedup shards 3": _file(dedup="{key: [id], shards: 3}"),
    "two ledgers": _file(sink='{wrapped: {sink: "m:s"}}', ledger='{sqlite: x, postgres: "postgresql://h/d"}'),
}


def refusal(text: str) -> str:
    """What becomes of a file."""
    try:
        parse(text, Path("/clicks.yaml"))
    except ConfigError as error:
        return f"refused {error.what.replace(chr(10), ' | ')}"
    return "loads"
