"""No file keeps what a merge could not decide."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="these are not files of a repository")
def test_no_file_has_the_marks_of_a_merge() -> None:
    """Three pages had them once. Fails if one of these lines is in any file."""
    begins = "<" * 7 + " "
    found = subprocess.run(
        ["git", "grep", "--untracked", "-lE", f"^{begins}|^{'>' * 7} "],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode in (0, 1), found.stderr
    assert found.stdout == ""
