"""Holds lines and branches to their bar, separately.

Coverage's own total mixes the two, so that many covered lines could hide uncovered branches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

BAR = 95.0


def shares(totals: dict[str, float]) -> dict[str, float]:
    """Return the covered share of lines and of branches, in percent."""
    counts = {
        "lines": (totals["covered_lines"], totals["num_statements"]),
        "branches": (totals["covered_branches"], totals["num_branches"]),
    }
    return {name: 100.0 * done / all_ if all_ else 100.0 for name, (done, all_) in counts.items()}


def main(arguments: list[str]) -> int:
    """Read the JSON report named on the command line; 1 if a bar is missed."""
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    found = shares(report["totals"])
    for name, share in found.items():
        print(f"{name}: {share:.2f} % (at least {BAR:.0f})")
    return 0 if min(found.values()) >= BAR else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
