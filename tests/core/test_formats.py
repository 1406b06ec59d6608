import pytest

from v4_core.errors import GeometryError
from v4_core.formats import index_row, main_row, state_row


@pytest.mark.parametrize(
    ("storage", "parts"), [("fp64", (4096,)), ("fp32", (2048,)), ("bf16", (1024,)), ("fp8", (576, 8))]
)
def test_main_row(storage: str, parts: tuple[int, ...]) -> None:
    row = main_row(storage, 512, 64)
    assert (row.parts, row.nbytes, row.width) == (parts, sum(parts), 512)


@pytest.mark.parametrize(
    ("storage", "parts"),
    [("fp64", (1024,)), ("fp32", (512,)), ("bf16", (256,)), ("fp8", (128, 4)), ("fp4", (64, 4))],
)
def test_index_row(storage: str, parts: tuple[int, ...]) -> None:
    assert index_row(storage, 128).parts == parts


def test_state_rows_are_never_narrower_than_fp32() -> None:
    sizes = {storage: state_row(storage, 16).nbytes for storage in ("fp64", "fp32", "bf16", "fp8")}
    assert sizes == {"fp64": 128, "fp32": 64, "bf16": 64, "fp8": 64}


def test_formats_without_a_layout_are_refused() -> None:
    with pytest.raises(GeometryError, match="storage format 'fp4' is unknown; known: fp64, fp32, bf16, fp8"):
        main_row("fp4", 512, 64)
    with pytest.raises(GeometryError, match=r"\(88\) in multiples of 64: use bf16"):
        main_row("fp8", 96, 8)
    with pytest.raises(GeometryError, match="index format 'int8' is unknown"):
        index_row("int8", 128)
    with pytest.raises(GeometryError, match=r"\(16\) in multiples of 32: use fp8"):
        index_row("fp4", 16)
