"""docs/metrics.md says what the processes expose."""

import re
import subprocess
import sys

from charts.metrics_document import FILE


def test_the_document_is_what_the_processes_expose() -> None:
    command = [sys.executable, "-m", "charts.metrics_document", "--print"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    assert FILE.read_text("utf-8") == done.stdout, "run `python -m charts.metrics_document`"


def test_every_metric_has_one_meaning_and_a_unit_where_its_name_says_so() -> None:
    found = re.findall(r"^\| `([\w]+)` \| (\w+) \| (.*?) \| (\w*) \| (.+) \|$", FILE.read_text("utf-8"), re.MULTILINE)
    assert len(found) > 60
    own = [entry for entry in found if entry[0].startswith("v4serve_")]
    assert len({name for name, *_ in own}) == len(own), "two processes must not share a name"
    for name, kind, _, unit, meaning in own:
        assert kind in ("counter", "gauge", "histogram"), name
        assert (kind == "counter") == name.endswith("_total"), name
        assert len(meaning.split()) > 2, name
        assert not meaning.endswith("."), name
        if "_seconds" in name or "_bytes" in name:
            assert unit in ("seconds", "bytes"), name
