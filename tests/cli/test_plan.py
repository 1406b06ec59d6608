import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny_config import CONFIG, DEEPSEEK
from v4_cli.main import run
from v4_cli.plan import MemoryPlanConfig, plan_memory
from v4_core.errors import ConfigError
from v4_core.profiles import model_config

M1 = 1_048_576


def test_pro_at_a_million_tokens_to_the_byte() -> None:
    p = plan_memory(MemoryPlanConfig("pro", M1, memory=141 * 10**9), model_config("pro"))
    assert p.ideal == {"swa": 0, "c4": 10_070_261_760, "c128": 264_110_080}
    assert p.ideal_total == 10_334_371_840
    assert (p.slots, p.slab, p.tail) == (4096, 2_521_088, 26_705_920)
    assert (p.checkpoint, p.checkpoint_slots) == (8_609_792, 4)
    assert p.allocated == 4096 * 2_521_088 + 26_705_920
    assert p.v32 == 90_060_095_488
    assert round(p.v32_ratio, 2) == 8.71
    assert p.sequences == 13


@pytest.mark.parametrize(
    ("model", "formats", "ideal"),
    [
        ("flash", ("bf16", "bf16"), 7_219_838_976),
        ("flash", ("fp8", "fp8"), 4_040_494_080),
        ("flash", ("fp8", "fp4"), 3_688_172_544),
        ("pro", ("fp8", "fp8"), 5_783_720_960),
        ("pro", ("fp8", "fp4"), 5_280_404_480),
    ],
)
def test_formats_by_flag(model: str, formats: tuple[str, str], ideal: int, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", model, "--context", str(M1), "--format", formats[0], "--index-format", formats[1], "--json"]
    assert run(["plan", *flags]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ideal_total"] == ideal
    assert answer["allocated"] / ideal < 1.01


def test_the_index_follows_the_format_and_the_format_the_checkpoint() -> None:
    def formats(wanted: MemoryPlanConfig, dtype: str) -> tuple[str, str]:
        p = plan_memory(wanted, replace(CONFIG, dtype=dtype))
        return p.format, p.index_format

    assert formats(MemoryPlanConfig("m", 9), "bf16") == ("bf16", "bf16")
    assert formats(MemoryPlanConfig("m", 9), "fp64") == ("fp64", "fp64")
    assert formats(MemoryPlanConfig("m", 9, format="fp32"), "bf16") == ("fp32", "fp32")
    assert formats(MemoryPlanConfig("m", 9, index_format="fp32"), "bf16") == ("bf16", "fp32")


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "pro", "--context", str(M1), "--memory", "141GB"]) == 0
    out = capsys.readouterr().out
    for text in ("10,334,371,840 B (9.6246 GiB)", "8.71x", "c128, 31 layers", "4,096 slots", "4 slots", "13 in "):
        assert text in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_checkpoint_folder_and_a_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    (tmp_path / "plan.yaml").write_text(f"{{model: '{tmp_path}', context: 100, memory: 1MiB}}")
    assert run(["plan", "--config", str(tmp_path / "plan.yaml"), "--context", "200", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["context"], answer["layers"], answer["memory"]) == (200, {"swa": 1, "c4": 2, "c128": 2}, 2**20)
    assert answer["sequences"] == 2**20 // answer["allocated"]


def test_a_sequence_that_the_model_cannot_have() -> None:
    with pytest.raises(ConfigError, match="give at least one token"):
        MemoryPlanConfig("pro", 0)
    with pytest.raises(ConfigError, match="pro supports at most 1048576 tokens"):
        plan_memory(MemoryPlanConfig("pro", M1 + 1), model_config("pro"))
