"""How a claim is shared among tenants. Each test was seen to fail with the line it names broken."""

from __future__ import annotations

from milecastle.ports.fairness import Group, Rotation, Scan, divide, sizes


def group(tenant: str, count: int, *, lane: str = "lane", rank: int = 0) -> Group:
    return Group(lane, tenant, rank, count)


def test_each_place_gets_one_before_any_gets_two() -> None:
    """Failed with the whole queue of the first group taken before the second."""
    assert divide(5, [group("a", 9), group("b", 1), group("c", 9)]) == [
        group("a", 2),
        group("b", 1),
        group("c", 2),
    ]
    assert divide(2, [group("a", 9), group("b", 9), group("c", 9)]) == [
        group("a", 1),
        group("b", 1),
    ]


def test_what_one_place_does_not_use_others_get() -> None:
    """Failed with shares that are fixed beforehand."""
    assert divide(10, [group("a", 1), group("b", 99)]) == [group("a", 1), group("b", 9)]
    assert divide(10, [group("a", 1), group("b", 2)]) == [group("a", 1), group("b", 2)]
    assert divide(0, [group("a", 1)]) == divide(-1, [group("a", 1)]) == divide(9, []) == []


def test_ranks_share_the_turn_of_their_tenant() -> None:
    """Failed with each rank as a group of its own."""
    given = [group("a", 1, rank=0), group("a", 2, rank=-5), group("b", 9)]
    assert divide(4, given) == [group("a", 2, rank=-5), group("b", 2)]
    assert divide(1, [given[2], *given[:2]]) == [group("b", 1)]


def test_a_place_that_was_found_twice_counts_once() -> None:
    """Failed without it: its count was doubled."""
    assert divide(9, [group("a", 2), group("a", 2)]) == [group("a", 2)]


def test_a_look_begins_behind_the_last_that_was_served() -> None:
    """Failed with the end of the look in place of what was served."""
    rotation = Rotation()
    scan = Scan([group("a", 1), group("b", 1), group("c", 1)])

    def after(served: list[Group], scan: Scan = scan, limit: int = 2) -> str:
        rotation.note({"lane": scan}, limit, sizes(served))
        return rotation.lanes(["lane"])[0][1]

    assert rotation.lanes(["lane"]) == [("lane", "")]
    assert after([group("a", 1)]) == "a"
    assert after([]) == "a"
    assert after([group("a", 2), group("b", 2), group("c", 1)], limit=5) == "b"
    assert after([group("a", 1), group("b", 1), group("c", 1)], limit=3) == ""
    assert after([group("a", 1)], Scan([group("a", 1)], "q")) == "q"
    assert after([], Scan([], "r")) == "r"
    assert after([group("a", 1)], Scan([group("a", 1), group("b", 1)], "t")) == "a"


def test_a_claim_begins_behind_the_lane_that_was_served_first() -> None:
    """Failed with the lanes as they were named, and with a turn for those that have nothing."""
    rotation = Rotation()
    named = ["x", "y", "", "x", "z", "empty"]
    first: list[str] = []
    for _ in range(6):
        lanes = [lane for lane, _ in rotation.lanes(named) if lane != "empty"]
        first.append(lanes[0])
        scans = {lane: Scan([group("a", 9, lane=lane)]) for lane in lanes}
        rotation.note(scans, 2, sizes(group("a", 1, lane=lane) for lane in lanes[:2]))
    assert first == ["x", "y", "z", "x", "y", "z"]
    rotation.note({}, 2, {})
    assert rotation.lanes(named)[0][0] == "empty"
    assert rotation.lanes([]) == []


def test_a_lane_that_ended_is_looked_at_from_its_beginning() -> None:
    """Failed with the groups of the second look twice."""
    first = Scan([group("y", 1), group("z", 1)])
    again = Scan([group("a", 1), group("y", 1)], "y")
    assert first.then(again) == Scan([group("y", 1), group("z", 1), group("a", 1)], "y")


def test_a_lane_begins_again_once_its_tenants_were_served() -> None:
    """Fails if only the last lane is noted, or if a lane behind it is."""
    rotation = Rotation()
    rotation.passed(["x", "y", "z"], [("x", "b"), ("x", "a"), ("y", "c"), ("y", "d")])
    assert dict(rotation.lanes(["x", "y", "z"])) == {"x": "", "y": "d", "z": ""}
    rotation.passed(["y", "z"], [])
    rotation.passed(["z", "y"], [("z", "e")])
    assert dict(rotation.lanes(["x", "y", "z"])) == {"x": "", "y": "d", "z": "e"}
