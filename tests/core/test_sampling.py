from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from v4_core.sampling import Sampling
from v4_core.v1 import worker_pb2 as pb

real = st.floats(0, 10)
samplings = st.builds(
    Sampling,
    temperature=real,
    top_k=st.integers(0, 2**31),
    top_p=real,
    min_p=real,
    seed=st.integers(0, 2**64 - 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=real,
    logit_bias=st.dictionaries(st.integers(0, 2**32 - 1), st.floats(-100, 100), max_size=4),
    logprobs=st.none() | st.integers(0, 20),
)


@given(samplings)
def test_round_trip(sampling: Sampling) -> None:
    wire = sampling.to_proto().SerializeToString()
    assert Sampling.from_proto(pb.Sampling.FromString(wire)) == sampling


def test_no_field_is_lost_on_the_wire() -> None:
    assert {field.name for field in fields(Sampling)} == set(pb.Sampling.DESCRIPTOR.fields_by_name)
