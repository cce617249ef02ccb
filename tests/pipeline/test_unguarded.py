"""Where strangers could fetch the files that executors are sent, the pipeline says so at its start."""

import json
from pathlib import Path

import pytest

from databus.pipeline import load_pipeline
from databus.pipeline.checks._check_options import unguarded

ELSEWHERE = "spark://spark.internal:7077"


@pytest.mark.parametrize(
    ("master", "relay", "settings", "is_said"),
    [
        (ELSEWHERE, {"token_file": "token"}, {}, True),
        (ELSEWHERE, {"token_file": "token"}, {"spark.authenticate": "false"}, True),
        (ELSEWHERE, {"token_file": "token"}, {"spark.authenticate": "true"}, False),
        (ELSEWHERE, {}, {}, False),
        ("spark://127.0.0.1:7077", {"token_file": "token"}, {}, False),
        ("local[2]", {"token_file": "token"}, {}, False),
    ],
)
def test_it_is_said_where_files_go_to_other_machines_and_spark_lets_everybody_in(
    tmp_path: Path, master: str, relay: dict[str, str], settings: dict[str, str], is_said: bool
) -> None:
    (tmp_path / "token").write_text("0123456789-a-token")
    sections = {
        "name": "copy",
        "relay": {"url": "http://192.0.2.7:11115", **relay},
        "spark": {"settings": settings},
        "inputs": {"shop": {"type": "databus"}},
        "outputs": {"lines": {"type": "files", "from": "shop", "path": "s3://lake/lines"}},
    }
    path = tmp_path / "databus.yml"
    path.write_text(json.dumps(sections))
    told = unguarded(master, load_pipeline(path, master=master).config)
    assert (told is not None and "spark.authenticate" in told) == is_said
