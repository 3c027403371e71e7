"""The results format: two Arrow tables, versioned, with unit and meaning on every field.

`CELLS` has one row per cell x repeat x task (one Parquet file each); `GENERATIONS` has one row per prompt of
a cell (one Parquet file per cell). A value that was not measured is null, never 0 or 1.0. This module knows
names, types and units only; `analysis.writer` and `analysis.reader` do the files.
"""

from typing import NamedTuple

import pyarrow as pa

SCHEMA_VERSION = 1
VERSION_KEY = b"specfrontier.schema_version"
TABLE_KEY = b"specfrontier.table"

STATUSES = ("ok", "failed")
DECODINGS = ("ar", "speculative")
TRANSPORTS = ("local", "ray")

#: Columns that fix the circumstances of a measurement. Points are compared only where all of these agree.
CONDITION_COLUMNS = (
    "verifier", "drafter", "temperature", "top_k", "top_p",
    "batch_size", "dtype", "device", "transport",
)  # fmt: skip
#: Columns that name an operating point: the two knobs, and whether there is a drafter at all.
POINT_COLUMNS = (
    "decoding", "effort_block", "effort_passes", "effort_reveal", "effort_value",
    "leniency_rule", "leniency_value",
)  # fmt: skip
#: Acceptance counters of a cell: null under AR decoding, where nothing is drafted.
ACCEPTANCE_COLUMNS = (
    "num_spec_rounds", "num_draft_tokens", "num_accepted_draft_tokens", "draft_acceptance_rate",
    "mean_acceptance_length_token_weighted", "mean_acceptance_length_per_request", "acceptance_histogram",
    "per_position_acceptance", "per_position_acceptance_conditional",
)  # fmt: skip


class Column(NamedTuple):
    """One column: name, Arrow type, whether null is allowed, unit ("" for none) and meaning."""

    name: str
    type: pa.DataType
    nullable: bool
    unit: str
    description: str


def _schema(table: str, columns: list[Column]) -> pa.Schema:
    fields = [
        pa.field(c.name, c.type, nullable=c.nullable, metadata={"unit": c.unit, "description": c.description})
        for c in columns
    ]
    return pa.schema(fields, metadata={VERSION_KEY: str(SCHEMA_VERSION).encode(), TABLE_KEY: table.encode()})


_TEXT, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()
_INTS, _FLOATS, _IDS = pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.int32())
_MARGINS = pa.list_(pa.list_(pa.float32()))
_TIME = pa.timestamp("us", tz="UTC")

_IDENTITY = [
    Column("experiment", _TEXT, False, "", "name of the experiment"),
    Column("experiment_fingerprint", _TEXT, False, "", "hash of the whole experiment configuration"),
    Column("cell_id", _TEXT, False, "", "hash of configuration, code, data and models; the file's name"),
    Column("status", _TEXT, False, "", "'ok' or 'failed'"),
    Column("error", _TEXT, True, "", "why a failed cell failed, in one sentence"),
    Column("created_at", _TIME, False, "UTC", "when the cell was finished"),
    Column("code_version", _TEXT, False, "", "version or commit of the code that measured"),
    Column("task", _TEXT, False, "", "name of the task"),
    Column("repeat", _INT, False, "", "index of the repeat, from 0"),
    Column("seed", _INT, False, "", "seed of the repeat"),
    Column("decoding", _TEXT, False, "", "'ar' (plain decoding) or 'speculative'"),
    Column("effort_block", _INT, True, "tokens", "drafted tokens per block, K; null for ar"),
    Column("effort_passes", _INT, True, "passes", "denoising passes allowed per block; null for ar"),
    Column("effort_reveal", _TEXT, True, "", "reveal rule; null for ar"),
    Column("effort_value", _FLOAT, True, "", "the reveal rule's parameter, where it has one"),
    Column("leniency_rule", _TEXT, True, "", "acceptance rule; null for ar"),
    Column("leniency_value", _FLOAT, True, "nats for 'margin'", "the rule's parameter"),
    Column("lossless", pa.bool_(), False, "", "the output is the verifier's own: always so for ar"),
    Column("temperature", _FLOAT, False, "", "sampling temperature, 0 is greedy"),
    Column("top_k", _INT, True, "tokens", "top-k cut-off; null: none"),
    Column("top_p", _FLOAT, True, "", "top-p cut-off; null: none"),
    Column("max_tokens", _INT, True, "tokens", "largest output allowed per prompt"),
    Column("batch_size", _INT, False, "requests", "requests decoded together"),
    Column("dtype", _TEXT, False, "", "arithmetic of the weights"),
    Column("device", _TEXT, False, "", "device, in words"),
    Column("threads", _INT, True, "threads", "CPU threads of the pair, where it ran on CPU"),
    Column("transport", _TEXT, False, "", "'local' (one process) or 'ray' (two actors)"),
    Column("verifier", _TEXT, False, "", "verifier's name"),
    Column("drafter", _TEXT, True, "", "drafter's name"),
    Column("verifier_fingerprint", _TEXT, False, "", "hash of the verifier's weights and configuration"),
    Column("drafter_fingerprint", _TEXT, True, "", "hash of the drafter's weights and configuration"),
    Column("data_fingerprint", _TEXT, False, "", "hash of the task's prompts and references"),
    Column("num_prompts", _INT, False, "prompts", "prompts the cell was asked to decode"),
    Column("num_ar_prompts", _INT, True, "prompts", "prompts the interleaved AR reference decoded"),
]

_CELL_METRICS = [
    Column("quality_metric", _TEXT, False, "", "what `quality` and `score` are"),
    Column("quality", _FLOAT, True, "", "mean score over the prompts"),
    Column("ar_quality", _FLOAT, True, "", "mean score of the AR reference over the prompts it decoded"),
    Column("tokens_per_s", _FLOAT, True, "tokens/s", "completion tokens / decoding time"),
    Column("ar_tokens_per_s", _FLOAT, True, "tokens/s", "the same, of the AR reference in this cell"),
    Column("speedup", _FLOAT, True, "x", "tokens_per_s / ar_tokens_per_s"),
    Column("tpot_ms", _FLOAT, True, "ms", "mean of (latency - TTFT) / (output tokens - 1)"),
    Column("ttft_ms", _FLOAT, True, "ms", "mean time to first content"),
    Column("time_per_answer_s", _FLOAT, True, "s", "mean time per completed answer"),
    Column("ar_time_per_answer_s", _FLOAT, True, "s", "the same, of the AR reference in this cell"),
    Column("output_length_ratio", _FLOAT, True, "x", "tokens / AR tokens over the prompts both decoded"),
    Column("num_spec_rounds", _INT, True, "rounds", "draft-verify rounds"),
    Column("num_draft_tokens", _INT, True, "tokens", "proposed draft tokens"),
    Column("num_accepted_draft_tokens", _INT, True, "tokens", "accepted draft tokens, bonus not counted"),
    Column("draft_acceptance_rate", _FLOAT, True, "", "accepted / proposed draft tokens"),
    Column("mean_acceptance_length_token_weighted", _FLOAT, True, "tokens", "1 + accepted / rounds"),
    Column("mean_acceptance_length_per_request", _FLOAT, True, "tokens", "mean of per-request lengths"),
    Column("acceptance_histogram", _INTS, True, "rounds", "index j: rounds that accepted exactly j"),
    Column("per_position_acceptance", _FLOATS, True, "", "rounds accepting position i / all rounds"),
    Column("per_position_acceptance_conditional", _FLOATS, True, "", "P(accept i given i - 1 accepted)"),
    Column("tokens_per_verifier_forward", _FLOAT, True, "tokens", "committed tokens / verifier forwards"),
    Column("draft_forwards_per_token", _FLOAT, True, "forwards", "realised draft forwards / tokens"),
    Column("own_sample_disagreement", _FLOAT, True, "", "share of tokens != the verifier's own sample"),
    Column("regret_nats", _FLOAT, True, "nats/token", "mean of log p_max - log p(emitted)"),
    Column("nll_nats", _FLOAT, True, "nats/token", "mean of -log p(emitted) under the verifier"),
    Column("completion_tokens", _INT, True, "tokens", "tokens emitted, all prompts together"),
    Column("draft_time_s", _FLOAT, True, "s", "time in the drafter, all prompts together"),
    Column("verify_time_s", _FLOAT, True, "s", "time in the verifier, all prompts together"),
    Column("other_time_s", _FLOAT, True, "s", "decoding time outside both models"),
    Column("wall_time_s", _FLOAT, True, "s", "wall time of the cell, AR reference included"),
]

_GENERATION = [
    Column("cell_id", _TEXT, False, "", "the cell this row belongs to"),
    Column("task", _TEXT, False, "", "name of the task"),
    Column("repeat", _INT, False, "", "index of the repeat, from 0"),
    Column("prompt_index", _INT, False, "", "position of the prompt in the cell, from 0"),
    Column("prompt_id", _TEXT, False, "", "identity of the prompt within the task, the same in every cell"),
    Column("prompt_text", _TEXT, False, "", "the prompt as the model saw it"),
    Column("text", _TEXT, False, "", "decoded output"),
    Column("token_ids", _IDS, False, "", "output token ids"),
    Column("finish_reason", _TEXT, False, "", "'stop', 'length' or 'error'"),
    Column("error", _TEXT, True, "", "why this prompt failed"),
    Column("score", _FLOAT, True, "", "the task's score of this output"),
    Column("completion_tokens", _INT, False, "tokens", "tokens emitted"),
    Column("num_spec_rounds", _INT, True, "rounds", "draft-verify rounds; null for ar"),
    Column("num_draft_tokens", _INT, True, "tokens", "proposed draft tokens; null for ar"),
    Column("num_accepted_draft_tokens", _INT, True, "tokens", "accepted draft tokens; null for ar"),
    Column("accepted_per_round", _IDS, True, "tokens", "accepted draft tokens of each round"),
    Column("drafted_per_round", _IDS, True, "tokens", "proposed draft tokens of each round"),
    Column("acceptance_histogram", _INTS, True, "rounds", "index j: rounds that accepted exactly j"),
    Column("required_margins", _MARGINS, True, "nats",
           "per round, the margin each drafted position needed, up to and including the first mismatch"),
    Column("draft_forwards", _INT, True, "forwards", "realised drafter forwards; null for ar"),
    Column("verifier_forwards", _INT, True, "forwards", "verifier forwards"),
    Column("own_sample_disagreements", _INT, True, "tokens", "tokens != the verifier's own sample"),
    Column("regret_nats", _FLOAT, True, "nats/token", "mean of log p_max - log p(emitted)"),
    Column("nll_nats", _FLOAT, True, "nats/token", "mean of -log p(emitted) under the verifier"),
    Column("ttft_s", _FLOAT, True, "s", "time to first content"),
    Column("latency_s", _FLOAT, True, "s", "time to the completed answer"),
    Column("draft_time_s", _FLOAT, True, "s", "time in the drafter"),
    Column("verify_time_s", _FLOAT, True, "s", "time in the verifier"),
    Column("ar_completion_tokens", _INT, True, "tokens", "AR reference: tokens emitted"),
    Column("ar_latency_s", _FLOAT, True, "s", "AR reference: time to the completed answer"),
    Column("ar_token_ids", _IDS, True, "", "AR reference: output token ids"),
    Column("ar_text", _TEXT, True, "", "AR reference: decoded output"),
    Column("ar_score", _FLOAT, True, "", "AR reference: the task's score"),
]  # fmt: skip

CELLS: pa.Schema = _schema("cells", _IDENTITY + _CELL_METRICS)
GENERATIONS: pa.Schema = _schema("generations", _GENERATION)
