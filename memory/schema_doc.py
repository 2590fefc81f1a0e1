"""What each table and column means; ``python -m memory.schema_doc`` writes ``docs/schema.md``.

Names and types come from the migrations, so that the page cannot be wrong about them; a table or
column that has no meaning here is an error.
"""

from pathlib import Path

import sqlite_utils

from memory.errors import StoreError
from memory.schema import migrations

FILE = Path(__file__).parents[1] / "docs" / "schema.md"

INTRODUCTION = """\
# The database

All that Denizen remembers stands in one SQLite file, `denizen.db` in the home folder. Any program
that reads SQLite may read it while the service runs (`datasette denizen.db`); only the service
writes. This page is written by `make schema` from the migrations in `memory/schema.py`.

- Instants are ISO 8601 text in UTC; JSON is text; booleans are 0 or 1.
- NULL means "not known" or "none"; where a number is missing, a column beside it says why.
- Token ids are blobs of little-endian unsigned 32-bit integers, log-probabilities blobs of
  little-endian 32-bit floats, in which NaN means that the engine did not say. `length(x) / 4` is
  their number.
- Embeddings are blobs of little-endian 32-bit floats.

## Calls that share a beginning

In a conversation each request repeats all that was said before. It stands in the file once: a call
with a `base_id` is based on an earlier call of the same episode, and `shared` says what is taken
from it: so many `tokens` of the base's prompt and completion, so many `messages` of the base's
request and its answer, whole `fields` of the request (null in the row), and values of the `answer`
where the client gave it back in other words. No call can lose its base: the database refuses to
commit without. `GET /v1/episodes/{id}` and `denizen episodes show` restore all of it.

The whole conversation of one call in SQL, but for answers that were given back otherwise:

```sql
{query}
```

## Tables
"""

CONVERSATION = """\
WITH RECURSIVE chain(id, base_id, number, kept) AS (
    SELECT id, base_id, 0, 1000000 FROM calls WHERE id = :call
    UNION ALL
    SELECT base.id, base.base_id, number + 1,
        min(kept, coalesce(json_extract(calls.shared, '$.messages'), 0))
    FROM chain JOIN calls ON calls.id = chain.id JOIN calls base ON base.id = chain.base_id),
said AS (
    SELECT number, kept, coalesce(json_extract(shared, '$.messages'), 0) + own.key AS position,
        own.value AS message FROM chain JOIN calls USING (id), json_each(request, '$.messages') own
    UNION ALL
    SELECT number, kept, coalesce(json_extract(shared, '$.messages'), 0)
        + json_array_length(request, '$.messages'), message FROM chain JOIN calls USING (id))
SELECT message FROM said WHERE position < kept ORDER BY position"""

Meanings = dict[str, tuple[str, dict[str, str]]]

MEANINGS: Meanings = {
    "episodes": (
        "All calls of one task.",
        {
            "id": "sorts by the millisecond it was made in",
            "created_at": "when its first call began",
            "source": "who caused it: `chat`, `harness`, `agent`, or `practice` of a cycle",
            "task_text": "the first user message: what it is about",
            "task_key": "`metadata.task`: the caller's own name for this kind of task",
            "reference": "`metadata.reference`: the right answer",
            "grader": "`metadata.grader`",
            "user": "`user` of the request",
            "session": "the session that the caller named",
            "tenant": "whose key was used; NULL: the default tenant",
            "skill_id": "the kind of task; NULL: none was found yet",
            "task_id": "the task that it practised, or that was derived from it; of practice at a "
            "recorded prefix, the episode that the prefix is of",
            "cycle_id": "the cycle that practised",
            "learn": "0: the caller sent `x-denizen-learn: off`",
            "withheld": "why it is not learned from, where the caller did not say so",
            "revision": "grows with every call, every feedback and every judgement",
            "digested_revision": "the revision that grades and outcome were worked out from",
            "outcome_value": "the merged grades, in [0, 1]",
            "outcome_provenance": "which kind of grade decided: `check`, `person` or `judge`",
            "outcome_num_grades": "how many grades were merged; NULL: it was not graded yet",
            "outcome_unscored_reason": "why there is no outcome",
        },
    ),
    "calls": (
        "One completion, token for token, in the order of the rows.",
        {
            "id": "the `id` of the answer's body; of further choices `ID.1`, `ID.2`, …",
            "episode_id": "the task that it belongs to",
            "parent_id": "the call that it hangs below in the episode's tree",
            "session": "the session that the caller named",
            "created_at": "when the request came",
            "adapter": "which weights answered: `base`, or a version",
            "request": "JSON: the body of the request without `metadata`, and without what is "
            "`shared`",
            "message": "JSON: the answer; NULL: nothing came",
            "prompt_token_ids": "as the engine reports them, after the `shared` ones; NULL: it did "
            "not",
            "completion_token_ids": "the final end-of-sequence token included",
            "sampler_logprobs": "one for each completion token",
            "finish_reason": "the engine's",
            "status": "`ok`, `cancelled` (the client hung up), or `error`",
            "latency_ms": "from the request to the end of the answer",
            "usage": "JSON: the engine's count of tokens",
            "error": "what went wrong",
            "learn": "0: the caller sent `x-denizen-learn: off`",
            "chain_key": "hash of the conversation up to the answer: found by what continues it",
            "edge": "how it hangs below its parent: `continuation`, `rerendered`, `fork`, `retry`, "
            "`compaction`, `side_call`, `sub_agent` or `session`; NULL: it began the episode",
            "system_key": "hash of the system prompt",
            "request_key": "hash of the whole request: found by another attempt at it",
            "quotes": "JSON: what other conversations may quote of it: kind, first words, number of"
            " words, hash",
            "base_id": "the call whose prompt and request this one repeats",
            "shared": "JSON: how much of it; see above",
            "withheld": "why it is kept from learning, whatever the caller says",
            "recalled": "JSON: what memory put into the prompt, and from where",
        },
    ),
    "feedback": (
        "What people said of answers; append-only.",
        {
            "id": "sorts by time",
            "episode_id": "of which episode",
            "call_id": "of which answer; NULL: of the episode as a whole",
            "created_at": "when",
            "value": "in [0, 1]; a thumb is 0 or 1",
            "comment": "in their words",
            "correction": "what the answer should have been",
            "source": "who said it",
        },
    ),
    "grades": (
        "What graders made of episodes.",
        {
            "id": "in the order of time",
            "episode_id": "what was graded",
            "created_at": "when",
            "superseded_at": "when another took its place; NULL: it is in force",
            "kind": "`check`, `person` or `judge`; the earlier wins when grades are merged; "
            "`reaction` (what the user did next) is shown and decides nothing",
            "grader": "its name",
            "version": "the grader's",
            "value": "in [0, 1]; NULL: it could not score",
            "unscored_reason": "why there is no value",
            "explanation": "what the grader says of it",
            "evidence": "JSON: what it rests on",
        },
    ),
    "judge_probes": (
        "What judges said of planted answers, and of two answers in both orders.",
        {
            "id": "in the order of time",
            "created_at": "when",
            "grader": "the judge's name",
            "version": "the judge's",
            "skill_id": "of which skill the task is",
            "task_id": "the task whose answers were planted",
            "episode_id": "the episode that the task was made of; NULL: it was given",
            "kind": "`known_good`, `known_bad`, `injected`, `padded`, or `swap`",
            "value": "the judge's grade; NULL: it gave none, or a swap",
            "swap": "of two answers in both orders: `consistent`, `first`, `second`, `undecided`",
        },
    ),
    "vectors": (
        "The embedding of each episode's task; the file `vectors.faiss` is a cache of it.",
        {
            "id": "never used again, also after its row is gone",
            "episode_id": "whose task",
            "embedder": "the model that made it; vectors of two models cannot be compared",
            "vector": "NULL: there is none",
            "missing_reason": "why there is none",
            "text_key": "hash of the text that was embedded",
        },
    ),
    "task_vectors": (
        "The embedding of tasks that were imported.",
        {
            "task_id": "which task",
            "embedder": "the model that made it",
            "vector": "NULL: there is none",
            "missing_reason": "why there is none",
            "text_key": "hash of the text that was embedded",
        },
    ),
    "skills": (
        "Kinds of task, discovered or named.",
        {
            "id": "stays when texts are grouped anew",
            "tenant": "whose tasks; NULL: the default tenant's",
            "title": "given by its texts, or by a person",
            "created_at": "when it was founded",
            "policy": "`learn`, `paused` or `locked`",
            "task_key": "the callers' own name for it",
            "is_kept": "1: a person named, split or merged it, and grouping leaves it alone",
            "merged_into": "the skill that it has become part of",
            "key_terms": "JSON: the words that tell it from the others",
            "embedder": "the model that its centroid lies by",
            "centroid": "the mean of its vectors",
            "centroid_count": "how many vectors are in the mean",
        },
    ),
    "skill_history": (
        "What happened to skills; append-only.",
        {
            "id": "in the order of time",
            "skill_id": "to which",
            "created_at": "when",
            "actor": "who decided",
            "event": "what happened",
            "other_id": "the other skill of a merge or split",
            "detail": "more of it",
        },
    ),
    "skill_guidelines": (
        "What people wrote down for a skill, to be recalled; the newest version is in force.",
        {
            "skill_id": "for which",
            "version": "from 1",
            "text": "the guideline; empty: from then on none is in force",
            "created_at": "when it was approved, or withdrawn",
            "author": "by whom",
        },
    ),
    "rubrics": (
        "By what judges score the answers of a skill; the newest version is in force.",
        {
            "skill_id": "for which",
            "version": "from 1",
            "text": "the rubric; empty: from then on the default one is in force again",
            "created_at": "when",
            "author": "who wrote it",
        },
    ),
    "judge_queue": (
        "Answers that wait for a judge.",
        {
            "episode_id": "of which episode",
            "call_id": "which answer",
            "num_tries": "how often a judge failed at it",
            "due_at": "not to be tried before",
        },
    ),
    "tasks": (
        "What can be tried again.",
        {
            "id": "hash of the content, so that importing it twice is importing it once",
            "created_at": "when it came",
            "messages": "JSON: what is asked",
            "reference": "the right answer",
            "grader": "who scores it",
            "grader_config": "JSON: how",
            "sampling": "JSON: `max_tokens`, `stop`, …",
            "split": "`train` or `heldout`, for ever",
            "origin": "`api`, `jsonl:FILE`, `reasoning-gym:NAME`, or `episode:ID`",
            "skill_id": "the kind of task",
            "task_key": "the caller's own name for it",
            "num_practised": "how often it was practised",
            "last_reward": "the mean reward of the last time",
            "tenant": "whose episode it was derived from",
        },
    ),
    "cycles": (
        "Learning runs.",
        {
            "id": "sorts by time",
            "created_at": "when it began",
            "ended_at": "when it ended",
            "state": "`running`, or how it ended",
            "start_version": "what it learned on from",
            "reason": "why it started",
            "candidate": "the version that came of it",
            "end_reason": "why it ended so",
            "receipt": "JSON: what went into it and what came of it",
            "gate": "JSON: the comparison on held-out tasks",
            "base_digest": "sha256 of the base model's weights; NULL: not noted",
            "settings_sha256": "of the settings that decide what its steps do; NULL: not noted",
            "num_resumes": "services that went on with it after another had ended",
            "num_deaths": "of these, after one that was killed",
            "was_stopped": "1: the service was stopped in an orderly way while it ran",
        },
    ),
    "cycle_skills": (
        "Which skills a cycle learned.",
        {"cycle_id": "the cycle", "skill_id": "the skill"},
    ),
    "cycle_steps": (
        "The optimizer's steps.",
        {
            "cycle_id": "of which cycle",
            "index": "from 1",
            "created_at": "when",
            "receipt": "JSON: loss, gradients, tokens, …",
        },
    ),
    "cycle_tasks": (
        "What a running cycle works on; nothing of one that has ended.",
        {
            "cycle_id": "which cycle",
            "role": "`train`, `heldout`, or `guard`: held-out, of a skill that is not learned",
            "place": "in the order of preference, from 0",
            "task_id": "the task; the id stays when the task goes",
        },
    ),
    "cycle_episodes": (
        "What a cycle sampled and learned from; the ids stay when episodes are erased.",
        {
            "cycle_id": "which cycle",
            "stage": "`before` and `after` on held-out tasks, `step-03` to learn from",
            "episode_id": "the episode",
            "group_index": "by which of the stage's tasks, from 0; NULL: it was not sampled here",
            "place": "which try at the task, from 0",
        },
    ),
    "adapter_versions": (
        "Versions of the LoRA weights; the files lie in `adapters/`.",
        {
            "id": "`denizen-000007`",
            "parent": "what it was trained on from: `base`, or a version",
            "created_at": "when it was sealed",
            "base_digest": "sha256 of the base model's weights",
            "sha256": "of the weights",
            "rank": "of the adapter",
            "alpha": "of the adapter",
            "target_modules": "JSON: the layers that it changes",
            "status": "`candidate`, `live`, `retired`, `rejected`, `rolled_back` or `tainted`",
            "origin": "`cycle` or `import`",
            "cycle_id": "the cycle that made it",
            "size_bytes": "of the weights",
            "reason": "why it was imported",
        },
    ),
    "version_episodes": (
        "Which episodes taught a version; the ids stay when the episodes go.",
        {
            "version_id": "the version",
            "episode_id": "the episode",
            "outcome_value": "its outcome when the version was sealed",
            "outcome_provenance": "which kind of grade had decided it; NULL: none, or not noted",
        },
    ),
    "version_taints": (
        "Versions that learned from what was erased.",
        {
            "version_id": "the version",
            "created_at": "when it became so",
            "erasure_id": "by which erasure",
            "num_episodes": "erased episodes that it had learned from itself",
            "inherited_from": "the version whose weights brought it",
        },
    ),
    "pointer_moves": (
        "What was live when; append-only.",
        {
            "id": "in the order of time",
            "created_at": "when",
            "from_version": "what was live until then",
            "to_version": "what was live from then on",
            "kind": "`promote` or `rollback`",
            "reason": "why",
            "actor": "who decided",
            "forced": "1: without a passing gate",
        },
    ),
    "erasures": (
        "What was erased, without its content.",
        {
            "id": "sorts by time",
            "created_at": "when it began",
            "ended_at": "when the files were clean of it; NULL: it goes on, at the next start too",
            "actor": "who asked for it",
            "scope": "`episode`, `task`, `session`, `user` or `tenant`",
            "scope_sha256": "hash of the name that was erased",
            "counts": "JSON: rows that went, by table",
            "tainted": "JSON: versions that had learned from them",
        },
    ),
    "erased_ids": (
        "Ids that may not come back.",
        {"id": "of an episode or a task", "erasure_id": "by which erasure"},
    ),
    "identity": (
        "One row: which database this is.",
        {"id": "random; files beside the database that name another are not used"},
    ),
}


def document() -> str:
    """Return the page.

    Raises:
        StoreError: a table or column has no meaning, or a meaning has no column.
    """
    db = sqlite_utils.Database(memory=True)
    migrations.apply(db)
    tables = {
        table.name: table for table in db.tables if not table.name.startswith(("_", "sqlite"))
    }
    if tables.keys() != MEANINGS.keys():
        raise StoreError(
            f"without a meaning, or without a table: {tables.keys() ^ MEANINGS.keys()}"
        )
    parts = [INTRODUCTION.replace("{query}", CONVERSATION)]
    parts += [_section(tables[name], *MEANINGS[name]) for name in MEANINGS]
    return "\n".join(parts)


def _section(table: sqlite_utils.db.Table, meaning: str, columns: dict[str, str]) -> str:
    found = {column.name: column for column in table.columns}
    if found.keys() != columns.keys():
        raise StoreError(f"columns of {table.name}: {found.keys() ^ columns.keys()}")
    others = {key.column: f"{key.other_table}.{key.other_column}" for key in table.foreign_keys}
    lines = [
        f"### {table.name}",
        "",
        meaning,
        "",
        "| column | type | meaning |",
        "| --- | --- | --- |",
    ]
    for name, what in columns.items():
        link = f" → `{others[name]}`" if name in others else ""
        lines.append(f"| `{name}` | {found[name].type} | {what}{link} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(document(), encoding="utf-8")
