"""Format versions from before the first release, which are refused."""

from __future__ import annotations

from milecastle.errors import StoreError


def unreleased(place: str) -> StoreError:
    return StoreError(
        f"{place} was written by a development version of milecastle, before the first release, in "
        "a format that is not read: leave it, and create a new one"
    )
