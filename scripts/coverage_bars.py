"""Holds lines and branches to their bar, separately.

One figure for both would let many covered lines hide uncovered branches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BAR = 95.0


def missing_of(reports: list[dict[str, Any]], kind: str) -> tuple[dict[str, list[Any]], float]:
    """Return what no process covered, by file, and the covered share in percent."""
    covered: set[Any] = set()
    known: set[Any] = set()
    for report in reports:
        for name, file in report["files"].items():
            executed = {(name, json.dumps(each)) for each in file[f"executed_{kind}"]}
            covered |= executed
            known |= executed | {(name, json.dumps(each)) for each in file[f"missing_{kind}"]}
    missing: dict[str, list[Any]] = {}
    for name, each in known - covered:
        missing.setdefault(name, []).append(json.loads(each))
    return missing, 100.0 * len(covered) / len(known) if known else 0.0


def main(arguments: list[str]) -> int:
    """Read the reports of the processes from the folder that is named; 1 if a bar is missed."""
    reports = [json.loads(file.read_bytes()) for file in sorted(Path(arguments[0]).glob("*.json"))]
    shares: list[float] = []
    for kind in ("lines", "branches"):
        missing, share = missing_of(reports, kind)
        shares.append(share)
        for name, places in sorted(missing.items()):
            print(f"{name}: {kind} {sorted(places)}")
        print(f"{kind}: {share:.2f} % (at least {BAR:.0f})")
    return 0 if min(shares) >= BAR else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
