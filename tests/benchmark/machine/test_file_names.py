"""Names of files fit into every file system, and short ones stay as they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmark.machine.file_names import LONGEST, shortened


def test_a_name_that_fits_stays_as_it_is() -> None:
    assert shortened("x" * LONGEST) == "x" * LONGEST


def test_longer_names_are_cut_and_stay_distinct() -> None:
    one, two = (shortened("x" * 1000 + end) for end in "ab")
    assert one != two and one.startswith("x" * 100)


@given(st.text(min_size=30).map(lambda text: 10 * text))
def test_no_name_has_more_bytes_than_allowed(name: str) -> None:
    assert len(shortened(name).encode()) <= LONGEST
