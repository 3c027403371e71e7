"""Scorers on answers written by hand."""

import json

import pytest

from jobs.tasks import Item, Message, field_accuracy, get_task
from jobs.tasks.generated import split_of
from jobs.tasks.humaneval import function_body

TURN = (Message("user", "question"),)


class TestTextJson:
    ITEM = Item("text_json/x", TURN, reference='{"name": "Ann Lee", "age": 3, "price": 12.5, "ok": "yes"}')

    @pytest.mark.parametrize(
        "answer",
        [
            '{"name": "Ann Lee", "age": 3, "price": 12.5, "ok": "yes"}',
            '{"name": "Ann Lee", "age": 3, "price": 12.5, "ok": "yes"}\n',
            ' {"ok":"yes","price":12.50,"age":3,"name":"Ann Lee"}',
        ],
    )
    def test_the_same_object_is_right_however_it_is_written(self, answer: str) -> None:
        assert get_task("text_json").score(self.ITEM, answer) == 1.0

    @pytest.mark.parametrize(
        "answer",
        [
            "",
            "[]",
            '{"name": "Ann Lee", "age": 3, "price": 12.5, "ok": "yes"',
            '{"name": "Ann Lee", "age": 3, "price": 12.5, "ok": "yes"}}',
            '{"name": "Ann Lee", "age": "3", "price": 12.5, "ok": "yes"}',
            '{"name": "Ann Lee", "age": 3, "price": 12.5}',
            '{"name": "Ann Lee", "age": 3, "price": 12.5, "ok": "yes", "more": 1}',
        ],
    )
    def test_anything_else_is_wrong(self, answer: str) -> None:
        assert get_task("text_json").score(self.ITEM, answer) == 0.0

    @pytest.mark.parametrize(
        ("answer", "share"),
        [
            ('{"name": "Ann Lee", "age": 3, "price": 12.5, "ok": "yes"}', 1.0),
            ('Sure: {"name": "Ann", "age": 3, "price": 12.5} and so on', 0.5),
            ('{"name": "Ann Lee", "age": true}', 0.25),
            ('{"name": "Ann Lee", "age": 3', 0.0),
            ("no object", 0.0),
            ("", 0.0),
        ],
    )
    def test_field_accuracy(self, answer: str, share: float) -> None:
        assert field_accuracy(self.ITEM, answer) == share

    def test_references_hold_what_the_sentence_says(self) -> None:
        for item in get_task("text_json").items("eval", 100, 0):
            values = json.loads(item.reference).values()
            assert all(str(value) in item.messages[-1].content for value in values)

    def test_the_reference_itself_is_right(self) -> None:
        for item in get_task("text_json").items("eval", 20, 0):
            assert get_task("text_json").score(item, item.reference) == 1.0

    def test_the_examples_never_show_an_eval_question(self) -> None:
        for item in get_task("text_json").items("eval", 100, 0):
            shown = [turn.content for turn in item.messages[:-1] if turn.role == "user"]
            assert len(shown) == 3
            assert {split_of(sentence) for sentence in shown} == {"train"}


class TestKeyValue:
    ITEM = Item("key_value/x", TURN, reference="4821")

    @pytest.mark.parametrize(
        ("answer", "right"),
        [(" 4821\n", 1.0), ("4821.", 1.0), (" 4822", 0.0), (" 48213", 0.0), (" 4821 4821", 0.0), ("", 0.0)],
    )
    def test_only_the_code_is_right(self, answer: str, right: float) -> None:
        assert get_task("key_value").score(self.ITEM, answer) == right

    def test_the_asked_line_is_there_once(self) -> None:
        for item in get_task("key_value").items("eval", 50, 0):
            lines = item.messages[-1].content.split("\n")
            assert lines.count(f"{item.prefill} {item.reference}") == 1
            assert sum(item.reference in line for line in lines) == 1


class TestHumanEval:
    ITEM = Item(
        "humaneval/x",
        TURN,
        prefill='```python\ndef add(a: int, b: int) -> int:\n    """Sum."""',
        reference="def check(candidate):\n    assert candidate(2, 3) == 5\n\ncheck(add)",
    )

    @pytest.mark.parametrize(
        ("answer", "right"),
        [
            ("\n    return a + b\n```", 1.0),
            ("\n    return a + b", 1.0),
            ("\n    return a + b\n\nprint(add(1,", 1.0),
            ("\n    return a - b\n```", 0.0),
            ("\n    return (a +", 0.0),
            ("", 0.0),
            ("\n    exit()", 0.0),
        ],
    )
    def test_the_unit_test_decides(self, answer: str, right: float) -> None:
        assert get_task("humaneval").score(self.ITEM, answer) == right

    def test_train_items_have_no_score(self) -> None:
        item = get_task("humaneval").items("train", 1, 0)[0]
        assert get_task("humaneval").score(item, "\n    return 1") is None

    def test_both_splits_have_one_layout(self) -> None:
        task = get_task("humaneval")
        for item in task.items("eval", 20, 0) + task.items("train", 20, 0):
            fence, head = item.prefill.split("\n", 1)
            assert fence == "```python"
            assert head in item.messages[-1].content
            assert "def " in head
            assert head.endswith(('"""', "'''"))

    @pytest.mark.parametrize(
        ("text", "body"),
        [
            ("\n    return 1\n```\nThis", "\n    return 1\n"),
            ("\n    x = 1\n\n    return x\n\ndef g():", "\n    x = 1\n\n    return x\n"),
            ("\n    return 1", "\n    return 1"),
        ],
    )
    def test_an_answer_ends_where_the_function_ends(self, text: str, body: str) -> None:
        assert function_body(text) == body


def test_chat_is_open() -> None:
    item = get_task("chat").items("eval", 1, 0)[0]
    assert get_task("chat").quality_metric == "agreement"
    assert get_task("chat").score(item, "anything") is None
