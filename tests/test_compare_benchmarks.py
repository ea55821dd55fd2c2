"""Two checkouts are compared run by run; the old one also with itself, to see the spread."""

from scripts.compare_benchmarks import compare, figures

CASE = ("append", "30,000 tokens", "s")


def test_a_case_is_slower_past_a_tenth_and_past_the_spread() -> None:
    quiet = [({CASE: 1.0}, {CASE: 1.2}, {CASE: 1.0})] * 3
    noisy = [({CASE: 1.0}, {CASE: 1.2}, {CASE: 1.4})] * 3
    equal = [({CASE: 1.0}, {CASE: 1.05}, {CASE: 1.0})] * 3
    assert [compare(rounds)[0].is_slower for rounds in (quiet, noisy, equal)] == [
        True,
        False,
        False,
    ]


def test_the_ratio_is_the_median_of_rounds() -> None:
    rounds = [({CASE: 1.0}, {CASE: new}, {CASE: 1.0}) for new in (0.9, 5.0, 1.0)]
    (one,) = compare(rounds)
    assert (one.ratio, one.spread, one.old) == (1.0, 1.0, 1.0)


def test_only_our_side_counts_and_only_cases_that_both_have() -> None:
    figure = {"side": "abut", "case": "30,000 tokens", "unit": "s", "median": 2.0}
    row = {
        "name": "append",
        "figures": [figure, figure | {"side": "other"}, figure | {"median": None}],
    }
    assert figures({"rows": [row]}) == {CASE: 2.0}
    assert compare([({CASE: 1.0}, {}, {CASE: 1.0})]) == []
