"""Every named case of bad input has its named outcome, alone and beside others, and none ends in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus import ALL, Corpus
from corpus.pipeline_files import FILES, refusal

from landonce.cli import main
from landonce.config import secrets

_OUTCOMES = Path(__file__).parents[1] / "corpus" / "outcomes"


@pytest.mark.parametrize("corpus", ALL, ids=lambda each: each.name)
def test_each_record_has_its_outcome_alone(corpus: Corpus) -> None:
    assert {name: corpus.become([value])[0] for name, value in corpus.cases.items()} == corpus.expected()


@pytest.mark.parametrize("corpus", ALL, ids=lambda each: each.name)
def test_each_record_has_the_same_outcome_beside_all_others(corpus: Corpus) -> None:
    assert dict(zip(corpus.cases, corpus.become(list(corpus.cases.values())), strict=True)) == corpus.expected()


def test_each_pipeline_file_has_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", set())  # other tests have secrets that are ordinary words
    lines = (_OUTCOMES / "files.txt").read_text().splitlines()
    assert {name: refusal(text) for name, text in FILES.items()} == dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("name", FILES)
def test_the_command_refuses_a_file_that_does_not_load(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In the same words, and with the exit code of a mistake in the file. What is refused is not even connected to."""
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.chdir(tmp_path)
    outcome = refusal(FILES[name])
    if outcome == "loads":
        return
    (tmp_path / "clicks.yaml").write_bytes(FILES[name].encode("utf-8", "surrogateescape"))
    monkeypatch.setattr("sys.argv", ["landonce", "check", "clicks.yaml"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "Traceback" not in said.out + said.err
    words = outcome.removeprefix("refused ").replace("/clicks.yaml", "").replace(" | ", " ")
    assert " ".join(words.split())[-60:] in " ".join((said.out + said.err).split())


def test_there_are_enough_of_them() -> None:
    assert len(FILES) + sum(len(each.cases) for each in ALL) >= 300
