"""The text of a choice's tokens: what is held back, and when it is released."""

from v4_core.v1 import worker_pb2 as pb
from v4_router.generation import Emit
from v4_router.output import ChoiceOutput, Delta, LogprobWriter

BYTES = [bytes([b]) for b in range(256)] + [b""]
END = 256


def push(output: ChoiceOutput, text: bytes, finish: str | None = None) -> Delta:
    return output.push(Emit(0, list(text), [], finish))


def test_a_character_cut_off_by_the_end_is_shown_as_such() -> None:
    output = ChoiceOutput(0, BYTES, (), None)
    assert push(output, b"a" + "é".encode()[:1]).text == "a"
    assert output.push(Emit(0, [], [], "length")).text == "\ufffd"


def test_the_beginning_of_a_stop_string_comes_with_the_end() -> None:
    output = ChoiceOutput(0, BYTES, ("STOP",), None)
    assert push(output, b"say ST").text == "say "
    last = push(output, b"O", "length")
    assert (last.text, last.finish, output.tokens) == ("STO", "length", 7)


def test_tokens_after_a_stop_string_are_not_counted() -> None:
    output = ChoiceOutput(0, BYTES, ("b",), None)
    delta = push(output, b"abcdef", "length")
    assert (delta.text, delta.ids, delta.finish) == ("a", list(b"ab"), "stop")
    assert (output.tokens, output.finish) == (2, "stop")


def test_a_character_cut_off_by_the_end_of_reasoning_stays_there() -> None:
    output = ChoiceOutput(0, BYTES, (), END)
    delta = output.push(Emit(0, [ord("r"), "é".encode()[0], END, ord("c")], [], None))
    assert (delta.reasoning, delta.text) == ("r\ufffd", "c")


def test_reasoning_that_never_ends() -> None:
    output = ChoiceOutput(0, BYTES, ("a",), END)
    delta = push(output, b"abc" + "é".encode()[:1], "length")
    assert (delta.reasoning, delta.text, delta.finish) == ("abc\ufffd", "", "length")


def test_a_logprob_of_minus_infinity_is_a_number_in_json() -> None:
    writer = LogprobWriter(BYTES, {END: "<end>"})
    entry = pb.TokenLogprobs(logprob=float("-inf"), top_ids=[END], top_logprobs=[-1.0])
    (item,) = writer.chat([97], [entry])["content"]
    assert (item["token"], item["logprob"]) == ("a", -9999.0)
    assert item["top_logprobs"][0]["token"] == "<end>"
