"""One function per dialect puts a name in quotes, and one a text: nothing else does so by hand."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "landonce"
QUOTES = {
    "ledger/names.py": "SQL databases",
    "read/schema/ddl.py": "Spark",
    "sinks/clickhouse/address.py": "ClickHouse",
}
"""The modules that hold them, and for which dialect."""
_SQL = re.compile(
    r"\b(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|DROP|RENAME|GRANT|CALL|MERGE INTO|ORDER BY|PARTITION BY|NOT NULL"
    r"|VALUES|SET|ADD COLUMN|U?Int(?:8|16|32|64)|TBLPROPERTIES)\b"
)
_BY_SQLALCHEMY = ("quote_identifier", "identifier_preparer", "format_table", "format_column", "quote_schema")
_ENDS, _BEGINS = re.compile(r"[`\"]$"), re.compile(r"^[`\"]")
_PLACE_IN_QUOTES = re.compile(r"[`\"](?:%s|%\(\w+\)s|\{\w*\})[`\"]")


def _pieces(added: ast.BinOp) -> tuple[str, str]:
    """The texts around what is put between them: of `"a" + name + "b"`, both; empty where there is none."""
    before = added.left
    if not (isinstance(before, ast.BinOp) and isinstance(before.op, ast.Add)) or isinstance(before.right, ast.Constant):
        return "", ""
    first = before.left.right if isinstance(before.left, ast.BinOp) else before.left
    ends = (each.value if isinstance(each, ast.Constant) else "" for each in (first, added.right))
    left, right = (each if isinstance(each, str) else "" for each in ends)
    return left, right


def by_hand(source: str) -> list[str]:
    """Where a source puts something in quotes: by SQLAlchemy's preparer; by writing a quote twice, or with a backslash; or by quotes around
    a part of a text that holds words of SQL."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in _BY_SQLALCHEMY:
            found.append(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace":
            texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if len(texts) == 2 and texts[0] in ("`", '"', "'") and texts[1] in (texts[0] * 2, f"\\{texts[0]}"):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else None for each in node.values]
            text = " ".join(str(each) for each in parts if each is not None)
            around = zip(parts, parts[1:], parts[2:], strict=False)
            wrapped = any(
                value is None and _ENDS.search(str(before or "")) and _BEGINS.search(str(after or ""))
                for before, value, after in around
            )
            if wrapped and _SQL.search(text):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _PLACE_IN_QUOTES.search(node.value) and _SQL.search(node.value):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = _pieces(node)
            text = f"{left} {right}"
            if _ENDS.search(left) and _BEGINS.search(right) and _SQL.search(text):
                found.append(ast.unparse(node))
    return found


def test_nothing_is_put_in_quotes_by_hand() -> None:
    files = [path for path in ROOT.rglob("*.py") if str(path.relative_to(ROOT)) not in QUOTES]
    found = {str(path.relative_to(ROOT)): by_hand(path.read_text()) for path in files}
    assert {path: each for path, each in found.items() if each} == {}


def test_each_dialect_has_its_function() -> None:
    for module in QUOTES:
        tree = ast.parse((ROOT / module).read_text())
        assert "quoted" in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("source", "times"),
    [
        ("dialect.identifier_preparer.quote_identifier(name)", 2),
        ("name.replace('`', '``')", 1),
        ('text.replace("\'", "\\\\\'")', 1),
        ("f'SELECT \"{name}\" FROM t'", 1),
        ("f'DROP TABLE `{name}`'", 1),
        ("f'`{name}` UInt64'", 1),
        ("f'DROP TABLE {quoted(name)}'", 0),
        ("f'set `{name}` in the file'", 0),
        ("f'SELECT `{one}`, `{other}` FROM t'", 1),
        ("f'INSERT INTO t (`{one}`, a, b)'", 1),
        ("'DROP TABLE `' + name + '`'", 1),
        ("'SELECT ' + columns + ' FROM t'", 0),
        ("'DROP TABLE `{}`'.format(name)", 1),
        ("'SELECT \"%s\" FROM t' % name", 1),
        ("'SELECT %s FROM t' % name", 0),
        ("name.replace('``', '`')", 0),
    ],
)
def test_quotes_by_hand_would_be_found(source: str, times: int) -> None:
    assert len(by_hand(source)) == times
