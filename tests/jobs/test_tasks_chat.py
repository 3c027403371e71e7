"""Question sets read from files."""

import json
from pathlib import Path

import pytest

from jobs.tasks import Message, load_jsonl


def write(path: Path, *rows: object) -> Path:
    """One JSON value a line, with a blank line at the end."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    return path


def test_spec_bench_and_mt_bench_layout(tmp_path: Path) -> None:
    row = {"question_id": 81, "category": "writing", "turns": ["First?", "Second?"], "reference": ["one", "two"]}
    (item,) = load_jsonl(write(tmp_path / "bench.jsonl", row))
    assert item.id == "bench/81"
    assert item.messages == (Message("user", "First?"),)
    assert item.reference == '["one", "two"]'


def test_gsm8k_layout(tmp_path: Path) -> None:
    items = load_jsonl(write(tmp_path / "gsm8k.jsonl", {"question": "1+1?", "answer": "#### 2"}), name="math")
    assert [(item.id, item.reference) for item in items] == [("math/1", "#### 2")]


@pytest.mark.parametrize("row", [{"prompt": "hi"}, {"turns": []}, {"turns": [""]}, {"question": 3}, ["hi"], "hi"])
def test_another_layout_is_refused_with_its_line(tmp_path: Path, row: object) -> None:
    path = write(tmp_path / "odd.jsonl", {"question": "fine"}, row)
    with pytest.raises(ValueError, match=r"'turns' .* or 'question' .*odd\.jsonl, line 2"):
        load_jsonl(path)


def test_a_line_that_is_not_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text("question: what?\n")
    with pytest.raises(ValueError, match=r"one JSON object a line, got 'question: what\?"):
        load_jsonl(path)
