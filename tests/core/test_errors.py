from v4_core.errors import unknown_key_message


def test_the_nearest_known_key_is_named() -> None:
    message = unknown_key_message("setting", "max_sequence", ["max_sequences", "port"])
    assert message == "unknown setting 'max_sequence': did you mean 'max_sequences'?"


def test_without_a_near_one_all_are_named() -> None:
    assert unknown_key_message("setting", "xyz", ["port", "host"]) == "unknown setting 'xyz': known: host, port"
