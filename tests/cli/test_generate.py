import json
from pathlib import Path

import pytest

from tests.router.tokenizers import write_model
from tests.tiny import tiny_checkpoint
from v4_cli.main import run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(write_model(tmp_path_factory.mktemp("models") / "tiny")))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run(["generate", *arguments, "--json"]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_the_same_seed_draws_the_same_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--model", model, "--prompt", "the cat", "--max-tokens", "12")
    first = answer(capsys, *asked)
    again = answer(capsys, *asked, "--seed", str(first["seed"]))
    other = answer(capsys, *asked, "--seed", "1")
    assert first["token_ids"] == again["token_ids"] != other["token_ids"]
    assert first["text"] == again["text"]
    assert first["finish_reason"] in ("length", "stop")


def test_greedy_text_streams_to_stdout(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--model", model, "--prompt", "the cat", "--max-tokens", "8", "--temperature", "0")
    expected = answer(capsys, *asked)["text"]
    assert run(["generate", *asked]) == 0
    assert capsys.readouterr().out == f"{expected}\n"


def test_any_id_of_a_list_ends_the_text(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--prompt", "the cat", "--max-tokens", "8", "--temperature", "0")
    ids = answer(capsys, "--model", model, *asked)["token_ids"]
    assert isinstance(ids, list)
    assert 0 not in ids
    ending = tiny_checkpoint(write_model(tmp_path / "ending"), eos_token_id=[ids[2], 0])
    expected = ids[: ids.index(ids[2]) + 1]
    result = answer(capsys, "--model", str(ending), *asked)
    assert (result["token_ids"], result["finish_reason"]) == (expected, "stop")


def test_a_prompt_that_can_never_fit(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "generate.yaml"
    file.write_text(json.dumps({"prompt": "cat " * 20_000, "model": model}))
    assert run(["generate", "--config", str(file)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_a_folder_without_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "--model", str(tmp_path), "--prompt", "x"]) == 2
    assert "must contain the model's tokenizer" in capsys.readouterr().err
