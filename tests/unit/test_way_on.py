"""The command that goes on, as it is printed."""

from __future__ import annotations

import pytest

from landonce.cli.command import next_step, say_error
from landonce.errors import TargetRefused


@pytest.mark.parametrize(
    ("command", "running", "said"),
    [
        ("landonce check {file}", "run", "landonce check clicks.yaml"),
        ("landonce check {file}", "check", ""),
        ("grant INSERT, then `landonce check {file}`", "run", "grant INSERT, then `landonce check clicks.yaml`"),
        ("grant INSERT, then `landonce check {file}`", "check", "grant INSERT"),
        ("landonce verify {file}   (again: it moved)", "verify", "landonce verify clicks.yaml   (again: it moved)"),
    ],
)
def test_it_does_not_name_the_command_that_says_it(command: str, running: str, said: str) -> None:
    assert next_step(command, "clicks.yaml", running) == said


def test_a_file_whose_name_has_a_space_is_one_word_of_the_command() -> None:
    assert next_step("landonce run {file}", "my clicks.yaml", "check") == "landonce run 'my clicks.yaml'"
    assert next_step("landonce run {file}", "my clicks.yaml", "run") == ""


def test_an_error_of_check_does_not_send_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    error = TargetRefused("no such thing.", safe="Nothing was written.", command="landonce check {file}")
    say_error(error, ["check", "clicks.yaml"])
    assert "Next step" not in capsys.readouterr().err
    say_error(error, ["state", "accept-gap", "clicks.yaml"])
    assert "Next step: landonce check clicks.yaml" in capsys.readouterr().err
    again = TargetRefused("no such thing.", command="landonce state accept-gap {file}")
    say_error(again, ["state", "accept-gap", "clicks.yaml", "--yes"])
    assert "Next step" not in capsys.readouterr().err
    say_error(error, ["run", "clicks.yaml"])
    assert "Next step: landonce check clicks.yaml" in capsys.readouterr().err
