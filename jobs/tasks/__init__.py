"""The tasks: where prompts come from and how answers are judged. Free of Ray and of any model.

`get_task("text_json").items("eval", 40, seed=0)` makes prompts, `render(tokenizer, item)` turns one into token ids,
`task.score(item, text)` judges the answer.
"""

from jobs.tasks.base import SPLITS, Item, Message, Split, Task, fingerprint, render, render_text
from jobs.tasks.chat import Chat, load_jsonl
from jobs.tasks.humaneval import HumanEval
from jobs.tasks.key_value import KeyValue
from jobs.tasks.text_json import TextJson, field_accuracy

REGISTRY: dict[str, Task] = {task.name: task for task in (TextJson(), KeyValue(), HumanEval(), Chat())}


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        ValueError: no such task; the message lists the known ones.
    """
    if name not in REGISTRY:
        raise ValueError(f"Expected a task of {', '.join(sorted(REGISTRY))}, got {name!r}; correct the name.")
    return REGISTRY[name]


__all__ = [
    "REGISTRY",
    "SPLITS",
    "Item",
    "Message",
    "Split",
    "Task",
    "field_accuracy",
    "fingerprint",
    "get_task",
    "load_jsonl",
    "render",
    "render_text",
]
