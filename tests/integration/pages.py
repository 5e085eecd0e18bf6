"""A page of the documentation, run from top to bottom as it stands: its files are written, its commands are run, and what they
print is what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from plain_process import UNDISTURBED, PlainProcess
from said import says

from landonce.local import LocalKafka

_CODE = '; echo "exit code $?"'
"""Behind a command that may fail: the page shows how it ends."""
_DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(yaml|python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_page(
    name: str,
    kafka: LocalKafka | None,
    topics: tuple[str, ...],
    folder: Path,
    *,
    spark: bool = True,
    needs_spark: str | None = None,
    together: bool = False,
    **environment: str,
) -> int:
    """Runs it in an empty folder, and gives how many commands that took. Without `spark`, commands are forked with plain workers, but for
    those that name `needs_spark`. `together`: from the first `spark-submit` on, all scripts run one after the other in one such process."""
    admin = None
    if kafka is not None:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            made.result(timeout=30)
        environment["KAFKA"] = kafka.bootstrap_servers
    variables = {**os.environ, "COLUMNS": "200", **environment}
    ran = 0
    later: list[tuple[str, list[str]]] = []
    for kind, text in _BLOCK.findall((_DOCS / name).read_text()):
        if kind != "console":
            if named := re.match(r"# ([\w.]+)", text):  # others only show how something is written
                (folder / named[1]).write_text(text)
            continue
        for command, expected in _steps(text):
            ran += 1
            if together and (later or command.startswith("spark-submit ")):
                later.append((command, expected))
                continue
            run = _run if spark or (needs_spark and needs_spark in command) else _run_forked
            _shows(command, run(command, folder, variables), expected)
    if later:
        printed = _run_together([command for command, _ in later], folder, variables)
        for (command, expected), text in zip(later, printed, strict=True):
            _shows(command, text, expected)
    if admin is not None:
        for gone in admin.delete_topics(list(topics)).values():
            gone.result(timeout=30)
    return ran


def console(page: str) -> list[str]:
    """The commands of a page."""
    blocks = (text for kind, text in _BLOCK.findall(page) if kind == "console")
    return [command for block in blocks for command, _ in _steps(block)]


def run_commands(commands: list[str], folder: Path, *, spark: bool = True) -> list[str]:
    """What each of them prints; none may fail."""
    run = _run if spark else _run_forked
    return [run(command, folder, {**os.environ, "COLUMNS": "200"}) for command in commands]


def _steps(block: str) -> list[tuple[str, list[str]]]:
    """Commands, each with the lines that must be in what it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((re.sub(r"  +# .*", "", line[2:]), []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    words = shlex.split(command.removesuffix(_CODE))
    if words[0] == "landonce":
        words = [sys.executable, "-m", "landonce", *words[1:]]
    elif words[0] == "python":
        words = [sys.executable, *words[1:]]
    elif words[0] == "spark-submit":
        words = [str(Path(sys.executable).parent / words[0]), *words[1:]]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False)
    return _ended(command, done.returncode, done.stdout + done.stderr)


def _ended(command: str, code: int, printed: str) -> str:
    assert code == 0 or command.endswith(_CODE), f"$ {command}\n{printed[-5000:]}"
    return printed + (f"\nexit code {code}\n" if command.endswith(_CODE) else "")


_TOGETHER = """
import runpy, sys
for words in {}:
    print("$", *words)
    sys.argv = words[:]
    runpy.run_path(words[0], run_name="__main__")
"""


def _run_together(commands: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    """What each of them prints. Spark starts once, with the packages of them all."""
    split = [shlex.split(command) for command in commands]
    scripts = [next(at for at, word in enumerate(words) if word.endswith(".py")) for words in split]
    starts = [words[:at] for words, at in zip(split, scripts, strict=True)]
    most = max(starts, key=lambda words: len(" ".join(words)))
    parts = [set(re.split("[ ,]", " ".join(each))) for each in (most, *starts) if each != ["python"]]
    assert all(each <= parts[0] for each in parts), "started in another way"
    (folder / "together.py").write_text(
        _TOGETHER.format([words[at:] for words, at in zip(split, scripts, strict=True)])
    )
    printed = _run(shlex.join([*most, "together.py"]), folder, environment)
    return re.split(r"^\$ .*$", printed, flags=re.MULTILINE)[1:]


def _run_forked(command: str, folder: Path, environment: dict[str, str]) -> str:
    program, *arguments = shlex.split(command.removesuffix(_CODE))
    script = ""
    if program == "python":
        script, *arguments = arguments
    else:
        assert program == "landonce", command
    log = folder / ".printed"
    log.unlink(missing_ok=True)
    process = PlainProcess(arguments, environment | UNDISTURBED, log, folder=folder, script=script)
    return _ended(command, process.wait(400), log.read_text())


def _shows(command: str, printed: str, expected: list[str]) -> None:
    """Every line is there. Where rows are shown, they are all that there are, in this order."""
    for line in expected:
        assert says(printed, line), f"$ {command}\nlacks: {line}\n{printed}"
    rows = [line for line in expected if line.startswith("{'")]
    lines = [line for line in printed.splitlines() if line.startswith("{'")]
    assert lines == rows or not rows, f"$ {command}\n{printed}"
