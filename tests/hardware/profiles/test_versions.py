import itertools

import pytest

from planner.hardware.profiles.versions import by_preference, parse_version

ORDERED = ["0.5.6", "0.5.6.post2", "0.5.10", "0.24.0", "1.0.0", "1.2.0rc5", "1.3.0rc10", "1.3.0rc20", "1.3.0", "2.23"]


def test_versions_sort_by_number_with_release_candidates_before_and_posts_after_their_release() -> None:
    keys = [parse_version(version) for version in ORDERED]
    assert all(older < newer for older, newer in itertools.pairwise(keys))


def test_a_local_part_does_not_change_a_version_and_text_without_a_number_is_the_lowest() -> None:
    assert parse_version("0.14.1.dev1+gd68209402") == parse_version("0.14.1.dev1")
    assert parse_version("unknown") < parse_version("0.0.1.dev0")


@pytest.mark.parametrize(
    ("wanted", "known", "first"),
    [
        ("0.19.0", ["0.18.0", "0.19.0", "0.24.0"], "0.19.0"),
        ("0.22.0", ["0.19.0", "0.24.0"], "0.24.0"),
        ("0.20.0", ["0.19.0", "0.24.0"], "0.19.0"),
        ("0.20.0", ["0.18.0", "0.22.0"], "0.22.0"),
        ("1.3.0rc14", ["1.3.0rc10", "1.3.0rc20", "1.0.0"], "1.3.0rc10"),
        ("1.3.0", ["1.2.0rc5", "1.3.0rc20"], "1.3.0rc20"),
        (None, ["0.9.0", "0.24.0", "0.5.6.post2"], "0.24.0"),
    ],
)
def test_the_nearest_version_comes_first_and_of_two_as_near_the_newer(
    wanted: str, known: list[str], first: str
) -> None:
    assert by_preference(wanted, known)[0] == first
    assert by_preference(wanted, known[::-1]) == by_preference(wanted, known)
