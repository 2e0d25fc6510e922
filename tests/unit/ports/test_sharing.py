"""How a claim is shared among tenants. Each test was seen to fail with the line it names broken."""

from __future__ import annotations

from milecastle.model.limit_key import NO_KEY
from milecastle.ports.fairness import START, Group, KeyRange, Rotation, Scan, divide, sizes


def group(
    tenant: str, count: int, *, lane: str = "lane", rank: int = 0, limit_key: str = NO_KEY
) -> Group:
    return Group(lane, tenant, limit_key, rank, count)


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
        return rotation.lanes(["lane"])[0][1][0]

    assert rotation.lanes(["lane"]) == [("lane", START)]
    assert after([group("a", 1)]) == "a"
    assert after([]) == "a"
    assert after([group("a", 2), group("b", 2), group("c", 1)], limit=5) == "b"
    assert after([group("a", 1), group("b", 1), group("c", 1)], limit=3) == ""
    assert after([group("a", 1)], Scan([group("a", 1)], ("q", NO_KEY))) == "q"
    assert after([], Scan([], ("r", NO_KEY))) == "r"
    assert after([group("a", 1)], Scan([group("a", 1), group("b", 1)], ("t", NO_KEY))) == "a"


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
    again = Scan([group("a", 1), group("y", 1)], ("y", "k=1"))
    assert first.then(again) == Scan([group("y", 1), group("z", 1), group("a", 1)], ("y", "k=1"))


def test_a_lane_begins_again_once_its_tenants_were_served() -> None:
    """Fails if only the last lane is noted, or if a lane behind it is."""
    rotation = Rotation()
    rotation.passed(["x", "y", "z"], [("x", "b"), ("x", "a"), ("y", "c"), ("y", "d")])
    assert dict(rotation.lanes(["x", "y", "z"])) == {"x": START, "y": ("d", NO_KEY), "z": START}
    rotation.passed(["y", "z"], [])
    rotation.passed(["z", "y"], [("z", "e")])
    assert dict(rotation.lanes(["x", "y", "z"])) == {
        "x": START,
        "y": ("d", NO_KEY),
        "z": ("e", NO_KEY),
    }


def test_keys_share_the_turn_of_their_tenant() -> None:
    """Failed with each key as a group of its own, and with ranks compared across keys."""
    given = [
        group("a", 1, limit_key="k=1"),
        group("a", 5, limit_key="k=2", rank=-5),
        group("a", 5),
        group("b", 9),
    ]
    assert divide(6, given) == [
        group("a", 1, limit_key="k=1"),
        group("b", 3),
        group("a", 1, limit_key="k=2", rank=-5),
        group("a", 1),
    ]


def test_a_tenants_keys_are_looked_at_from_behind_the_last_that_was_served() -> None:
    """Failed with the first key each time, and without the keys before the last one."""
    rotation = Rotation()
    scan = Scan([group("a", 1, limit_key="k=1"), group("b", 1)])
    whole = KeyRange("lane", "a", "", NO_KEY)
    assert rotation.key_ranges([scan]) == [whole]
    assert rotation.key_ranges([Scan([group("b", 1)])]) == []
    found = [group("a", 1, limit_key=key) for key in ("k=1", "k=2", NO_KEY)]
    served, turned = list[str](), scan
    for _ in range(6):
        turned = rotation.with_keys("lane", scan, found)
        taken = divide(1, turned.groups)
        served.append(taken[0].limit_key)
        rotation.note({"lane": turned}, 1, sizes(taken))
    assert served == ["k=1", "k=2", NO_KEY] * 2
    rotation.note({"lane": turned}, 1, sizes(found[:1]))
    assert rotation.key_ranges([scan]) == [
        KeyRange("lane", "a", "k=1", NO_KEY),
        KeyRange("lane", "a", "", "k=1"),
    ]
