"""The command itself: what it does before a verb is called."""

from __future__ import annotations

import pytest

from milecastle.cli.main import COMPLETION, main


def test_main_prints_its_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["milecastle", "--version"])
    monkeypatch.delenv(COMPLETION, raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("milecastle ")


def test_main_prints_the_script_of_a_completion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["milecastle"])
    monkeypatch.setenv(COMPLETION, "bash_source")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert COMPLETION in capsys.readouterr().out
