"""The database's schema as ordered migrations; the only place that creates or alters tables.

Instants are ISO 8601 text in UTC, so that they sort and read well in datasette; JSON is text; token
ids and log-probabilities are the compact blobs of ``memory/tokens.py``. It does not know who reads
the rows.
"""

from sqlite_utils import Database, Migrations

migrations = Migrations("denizen")


@migrations()
def m001_episodes_and_calls(db: Database) -> None:
    """What was asked and answered, token for token, and what was thought of it."""
    db.executescript("""
        CREATE TABLE episodes (
            id TEXT PRIMARY KEY, created_at TEXT NOT NULL, source TEXT NOT NULL,
            task_text TEXT NOT NULL, task_key TEXT, reference TEXT, grader TEXT, user TEXT,
            session TEXT, tenant TEXT, skill_id INTEGER REFERENCES skills(id), task_id TEXT,
            cycle_id TEXT, learn INTEGER NOT NULL,
            revision INTEGER NOT NULL, digested_revision INTEGER NOT NULL,
            outcome_value REAL, outcome_provenance TEXT, outcome_num_grades INTEGER,
            outcome_unscored_reason TEXT
        ) STRICT;
        CREATE INDEX episodes_by_skill ON episodes(skill_id, id);
        CREATE INDEX episodes_by_session ON episodes(session) WHERE session IS NOT NULL;
        CREATE INDEX episodes_undigested ON episodes(id) WHERE digested_revision < revision;

        CREATE TABLE calls (
            id TEXT PRIMARY KEY, episode_id TEXT NOT NULL REFERENCES episodes(id), parent_id TEXT,
            session TEXT, created_at TEXT NOT NULL, adapter TEXT NOT NULL,
            request TEXT NOT NULL, message TEXT,
            prompt_token_ids BLOB, completion_token_ids BLOB, sampler_logprobs BLOB,
            finish_reason TEXT, status TEXT NOT NULL, latency_ms REAL NOT NULL, usage TEXT,
            error TEXT,
            learn INTEGER NOT NULL, chain_key TEXT
        ) STRICT;
        CREATE INDEX calls_by_episode ON calls(episode_id);
        CREATE INDEX calls_by_chain ON calls(chain_key) WHERE chain_key IS NOT NULL;

        CREATE TABLE feedback (
            id TEXT PRIMARY KEY, episode_id TEXT NOT NULL REFERENCES episodes(id), call_id TEXT,
            created_at TEXT NOT NULL, value REAL NOT NULL, comment TEXT, correction TEXT,
            source TEXT NOT NULL
        ) STRICT;
        CREATE INDEX feedback_by_episode ON feedback(episode_id);

        CREATE TABLE grades (
            id INTEGER PRIMARY KEY, episode_id TEXT NOT NULL REFERENCES episodes(id),
            created_at TEXT NOT NULL, superseded_at TEXT,
            kind TEXT NOT NULL, grader TEXT NOT NULL, version TEXT NOT NULL, value REAL,
            unscored_reason TEXT, explanation TEXT NOT NULL, evidence TEXT NOT NULL
        ) STRICT;
        CREATE INDEX grades_by_episode ON grades(episode_id);
    """)


@migrations()
def m002_skills_and_tasks(db: Database) -> None:
    """What kinds of work there are, and what can be tried again."""
    db.executescript("""
        CREATE TABLE skills (
            id INTEGER PRIMARY KEY, title TEXT NOT NULL, created_at TEXT NOT NULL,
            policy TEXT NOT NULL, task_key TEXT UNIQUE, centroid BLOB,
            centroid_count INTEGER NOT NULL
        ) STRICT;

        CREATE TABLE tasks (
            id TEXT PRIMARY KEY, created_at TEXT NOT NULL, messages TEXT NOT NULL, reference TEXT,
            grader TEXT NOT NULL, grader_config TEXT NOT NULL, sampling TEXT NOT NULL,
            split TEXT NOT NULL, origin TEXT NOT NULL, skill_id INTEGER REFERENCES skills(id),
            task_key TEXT, num_practised INTEGER NOT NULL DEFAULT 0, last_reward REAL
        ) STRICT;
        CREATE INDEX tasks_by_skill ON tasks(skill_id, split);
    """)


@migrations()
def m003_versions_and_cycles(db: Database) -> None:
    """What was learned, from what, and what was live when."""
    db.executescript("""
        CREATE TABLE cycles (
            id TEXT PRIMARY KEY, created_at TEXT NOT NULL, ended_at TEXT, state TEXT NOT NULL,
            start_version TEXT NOT NULL, reason TEXT NOT NULL, candidate TEXT, end_reason TEXT,
            receipt TEXT NOT NULL, gate TEXT
        ) STRICT;
        CREATE TABLE cycle_skills (
            cycle_id TEXT NOT NULL REFERENCES cycles(id),
            skill_id INTEGER NOT NULL REFERENCES skills(id),
            PRIMARY KEY (cycle_id, skill_id)
        ) STRICT;
        CREATE TABLE cycle_steps (
            cycle_id TEXT NOT NULL REFERENCES cycles(id), "index" INTEGER NOT NULL,
            created_at TEXT NOT NULL, receipt TEXT NOT NULL, PRIMARY KEY (cycle_id, "index")
        ) STRICT;

        CREATE TABLE adapter_versions (
            id TEXT PRIMARY KEY, parent TEXT NOT NULL, created_at TEXT NOT NULL,
            base_digest TEXT NOT NULL, sha256 TEXT NOT NULL, rank INTEGER NOT NULL,
            alpha INTEGER NOT NULL, target_modules TEXT NOT NULL, status TEXT NOT NULL,
            origin TEXT NOT NULL, cycle_id TEXT, size_bytes INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE version_episodes (
            version_id TEXT NOT NULL REFERENCES adapter_versions(id), episode_id TEXT NOT NULL,
            PRIMARY KEY (version_id, episode_id)
        ) STRICT;
        CREATE INDEX version_episodes_by_episode ON version_episodes(episode_id);
        CREATE TABLE pointer_moves (
            id INTEGER PRIMARY KEY, created_at TEXT NOT NULL, from_version TEXT NOT NULL,
            to_version TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, actor TEXT NOT NULL,
            forced INTEGER NOT NULL
        ) STRICT;
    """)


@migrations()
def m004_vectors(db: Database) -> None:
    """The embedding of each episode's task text; the faiss index is rebuilt from here."""
    db.executescript("""
        CREATE TABLE vectors (
            episode_id TEXT PRIMARY KEY REFERENCES episodes(id), embedder TEXT NOT NULL,
            vector BLOB, missing_reason TEXT
        ) STRICT;
    """)


@migrations()
def m005_import_reasons(db: Database) -> None:
    """Why a version was brought in from outside."""
    db.executescript("ALTER TABLE adapter_versions ADD COLUMN reason TEXT;")


@migrations()
def m006_call_trees(db: Database) -> None:
    """How each call hangs in its episode's tree, and by what a later request finds it."""
    db.executescript("""
        ALTER TABLE calls ADD COLUMN edge TEXT;
        ALTER TABLE calls ADD COLUMN system_key TEXT;
        ALTER TABLE calls ADD COLUMN request_key TEXT;
        ALTER TABLE calls ADD COLUMN quotes TEXT;
        CREATE INDEX calls_by_request ON calls(request_key) WHERE request_key IS NOT NULL;
        CREATE INDEX calls_by_parent ON calls(parent_id) WHERE parent_id IS NOT NULL;
        CREATE INDEX episodes_live ON episodes(id) WHERE source != 'practice';
    """)


@migrations()
def m007_skills_over_time(db: Database) -> None:
    """What becomes of skills: whose they are, who decided what, and by which embedder they lie."""
    # A UNIQUE column cannot be altered, and two tenants may give their tasks the same name. Rows
    # that refer to skills are looked at when the migration commits.
    db.executescript("""
        PRAGMA defer_foreign_keys = ON;
        CREATE TABLE skills_before AS SELECT * FROM skills;
        DROP TABLE skills;
        CREATE TABLE skills (
            id INTEGER PRIMARY KEY, tenant TEXT, title TEXT NOT NULL, created_at TEXT NOT NULL,
            policy TEXT NOT NULL, task_key TEXT, is_kept INTEGER NOT NULL DEFAULT 0,
            merged_into INTEGER REFERENCES skills(id), key_terms TEXT NOT NULL DEFAULT '[]',
            embedder TEXT, centroid BLOB, centroid_count INTEGER NOT NULL
        ) STRICT;
        INSERT INTO skills
            (id, title, created_at, policy, task_key, embedder, centroid, centroid_count)
            SELECT id, title, created_at, policy, task_key,
                COALESCE((SELECT embedder FROM vectors LIMIT 1), 'all-MiniLM-L6-v2'),
                centroid, centroid_count FROM skills_before;
        DROP TABLE skills_before;
        CREATE UNIQUE INDEX skills_by_key ON skills(COALESCE(tenant, ''), task_key)
            WHERE task_key IS NOT NULL;
        CREATE INDEX skills_merged ON skills(merged_into) WHERE merged_into IS NOT NULL;

        CREATE TABLE skill_history (
            id INTEGER PRIMARY KEY, skill_id INTEGER NOT NULL REFERENCES skills(id),
            created_at TEXT NOT NULL, actor TEXT NOT NULL, event TEXT NOT NULL,
            other_id INTEGER REFERENCES skills(id), detail TEXT
        ) STRICT;
        CREATE INDEX skill_history_by_skill ON skill_history(skill_id);

        ALTER TABLE vectors ADD COLUMN text_key TEXT;
        CREATE TABLE task_vectors (
            task_id TEXT PRIMARY KEY REFERENCES tasks(id) ON DELETE CASCADE,
            embedder TEXT NOT NULL, vector BLOB, missing_reason TEXT, text_key TEXT
        ) STRICT;
        DROP INDEX episodes_by_skill;  -- a new episode has none yet
        CREATE INDEX episodes_by_skill ON episodes(skill_id, id) WHERE skill_id IS NOT NULL;
        CREATE INDEX episodes_in_pen ON episodes(id)
            WHERE skill_id IS NULL AND source != 'practice';
    """)


@migrations()
def m008_shared_beginnings_and_vector_ids(db: Database) -> None:
    """What a call repeats of another is stored once; vectors have ids that are never used again.

    The database itself keeps the promise that no call loses what it is based on: it refuses to
    commit without.
    """
    db.executescript("""
        ALTER TABLE calls ADD COLUMN base_id TEXT
            REFERENCES calls(id) DEFERRABLE INITIALLY DEFERRED;
        ALTER TABLE calls ADD COLUMN shared TEXT;
        CREATE INDEX calls_by_base ON calls(base_id) WHERE base_id IS NOT NULL;

        CREATE TABLE numbered_vectors (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            episode_id TEXT NOT NULL UNIQUE REFERENCES episodes(id), embedder TEXT NOT NULL,
            vector BLOB, missing_reason TEXT, text_key TEXT
        ) STRICT;
        INSERT INTO numbered_vectors (episode_id, embedder, vector, missing_reason, text_key)
            SELECT episode_id, embedder, vector, missing_reason, text_key FROM vectors
            ORDER BY rowid;
        DROP TABLE vectors;
        ALTER TABLE numbered_vectors RENAME TO vectors;
        CREATE INDEX vectors_by_embedder ON vectors(embedder, length(vector), id);
        CREATE TRIGGER vectors_are_replaced BEFORE UPDATE OF id, embedder, vector ON vectors
        BEGIN SELECT RAISE(ABORT, 'another vector is another row: insert or replace it'); END;

        CREATE TABLE identity (id TEXT NOT NULL) STRICT;
        INSERT INTO identity (id) VALUES (lower(hex(randomblob(16))));
    """)


@migrations()
def m009_privacy(db: Database) -> None:
    """Tenants, what is kept from learning and why, what was recalled, and what was erased.

    An erased id is remembered, without what it stood for: whatever was on its way into the file
    when it was erased is left out, by the triggers or, for episodes and calls, which come often,
    by the store that writes them.
    """
    db.executescript("""
        ALTER TABLE episodes ADD COLUMN withheld TEXT;
        ALTER TABLE calls ADD COLUMN withheld TEXT;
        ALTER TABLE calls ADD COLUMN recalled TEXT;
        ALTER TABLE tasks ADD COLUMN tenant TEXT;
        CREATE INDEX episodes_by_tenant ON episodes(tenant, id) WHERE tenant IS NOT NULL;
        CREATE INDEX episodes_by_user ON episodes(user) WHERE user IS NOT NULL;
        CREATE INDEX episodes_by_task ON episodes(task_id) WHERE task_id IS NOT NULL;
        CREATE INDEX calls_by_session ON calls(session) WHERE session IS NOT NULL;
        CREATE INDEX calls_recalled ON calls(id) WHERE recalled IS NOT NULL;
        CREATE INDEX tasks_by_origin ON tasks(origin);

        CREATE TABLE skill_guidelines (
            skill_id INTEGER PRIMARY KEY REFERENCES skills(id), text TEXT NOT NULL,
            created_at TEXT NOT NULL
        ) STRICT;

        CREATE TABLE erasures (
            id TEXT PRIMARY KEY, created_at TEXT NOT NULL, ended_at TEXT, actor TEXT NOT NULL,
            scope TEXT NOT NULL, scope_sha256 TEXT NOT NULL, counts TEXT NOT NULL,
            tainted TEXT NOT NULL
        ) STRICT;
        CREATE TABLE erased_ids (
            id TEXT PRIMARY KEY, erasure_id TEXT NOT NULL REFERENCES erasures(id)
        ) STRICT;
        CREATE TABLE version_taints (
            version_id TEXT PRIMARY KEY REFERENCES adapter_versions(id),
            created_at TEXT NOT NULL, erasure_id TEXT NOT NULL REFERENCES erasures(id),
            num_episodes INTEGER NOT NULL, inherited_from TEXT
        ) STRICT;

        CREATE TRIGGER erased_feedback BEFORE INSERT ON feedback
        WHEN EXISTS (SELECT 1 FROM erased_ids WHERE id = NEW.episode_id)
        BEGIN SELECT RAISE(IGNORE); END;
        CREATE TRIGGER erased_grades BEFORE INSERT ON grades
        WHEN EXISTS (SELECT 1 FROM erased_ids WHERE id = NEW.episode_id)
        BEGIN SELECT RAISE(IGNORE); END;
        CREATE TRIGGER erased_vectors BEFORE INSERT ON vectors
        WHEN EXISTS (SELECT 1 FROM erased_ids WHERE id = NEW.episode_id)
        BEGIN SELECT RAISE(IGNORE); END;
        CREATE TRIGGER erased_tasks BEFORE INSERT ON tasks
        WHEN NEW.origin LIKE 'episode:%'
            AND EXISTS (SELECT 1 FROM erased_ids WHERE id = substr(NEW.origin, 9))
        BEGIN SELECT RAISE(IGNORE); END;
    """)


@migrations()
def m010_judges(db: Database) -> None:
    """By what judges score the tasks of a skill, and which answers wait for a judge."""
    db.executescript("""
        CREATE TABLE rubrics (
            skill_id INTEGER NOT NULL REFERENCES skills(id), version INTEGER NOT NULL,
            text TEXT NOT NULL, created_at TEXT NOT NULL, author TEXT NOT NULL,
            PRIMARY KEY (skill_id, version)
        ) STRICT;
        CREATE TABLE judge_queue (
            episode_id TEXT PRIMARY KEY REFERENCES episodes(id) ON DELETE CASCADE,
            call_id TEXT NOT NULL, num_tries INTEGER NOT NULL, due_at TEXT NOT NULL
        ) STRICT;
        CREATE INDEX judge_queue_by_due ON judge_queue(due_at);
        CREATE TRIGGER erased_judge_queue BEFORE INSERT ON judge_queue
        WHEN EXISTS (SELECT 1 FROM erased_ids WHERE id = NEW.episode_id)
        BEGIN SELECT RAISE(IGNORE); END;
    """)


@migrations()
def m011_trust_in_judges(db: Database) -> None:
    """What judges said of planted answers, and what outcomes versions were trained on."""
    db.executescript("""
        CREATE TABLE judge_probes (
            id INTEGER PRIMARY KEY, created_at TEXT NOT NULL, grader TEXT NOT NULL,
            version TEXT NOT NULL, skill_id INTEGER NOT NULL REFERENCES skills(id),
            task_id TEXT NOT NULL, episode_id TEXT REFERENCES episodes(id),
            kind TEXT NOT NULL, value REAL, swap TEXT
        ) STRICT;
        CREATE INDEX judge_probes_by_skill ON judge_probes(skill_id);
        CREATE INDEX judge_probes_by_episode ON judge_probes(episode_id)
            WHERE episode_id IS NOT NULL;
        CREATE INDEX grades_of_judges ON grades(episode_id)
            WHERE kind = 'judge' AND superseded_at IS NULL;
        CREATE TRIGGER erased_probes BEFORE INSERT ON judge_probes
        WHEN EXISTS (SELECT 1 FROM erased_ids WHERE id IN (NEW.episode_id, NEW.task_id))
        BEGIN SELECT RAISE(IGNORE); END;

        ALTER TABLE version_episodes ADD COLUMN outcome_value REAL;
        ALTER TABLE version_episodes ADD COLUMN outcome_provenance TEXT;
    """)


@migrations()
def m012_cycles_that_go_on(db: Database) -> None:
    """What a service needs to go on with a cycle that another one had begun."""
    db.executescript("""
        ALTER TABLE cycles ADD COLUMN base_digest TEXT;
        ALTER TABLE cycles ADD COLUMN settings_sha256 TEXT;
        ALTER TABLE cycles ADD COLUMN num_resumes INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE cycles ADD COLUMN num_deaths INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE cycles ADD COLUMN was_stopped INTEGER NOT NULL DEFAULT 0;
        CREATE TABLE cycle_tasks (
            cycle_id TEXT NOT NULL REFERENCES cycles(id), role TEXT NOT NULL,
            place INTEGER NOT NULL, task_id TEXT NOT NULL, PRIMARY KEY (cycle_id, role, place)
        ) STRICT;
        CREATE TABLE cycle_episodes (
            cycle_id TEXT NOT NULL REFERENCES cycles(id), stage TEXT NOT NULL,
            episode_id TEXT NOT NULL, group_index INTEGER, place INTEGER,
            PRIMARY KEY (cycle_id, stage, episode_id)
        ) STRICT;
        CREATE INDEX cycle_episodes_by_episode ON cycle_episodes(episode_id);
    """)


@migrations()
def m013_what_is_recalled(db: Database) -> None:
    """What went well is found however little was graded; earlier guidelines are kept."""
    db.executescript("""
        CREATE INDEX episodes_graded ON episodes(skill_id, id, outcome_value)
            WHERE outcome_value IS NOT NULL;

        CREATE TABLE guideline_versions (
            skill_id INTEGER NOT NULL REFERENCES skills(id), version INTEGER NOT NULL,
            text TEXT NOT NULL, created_at TEXT NOT NULL, author TEXT NOT NULL,
            PRIMARY KEY (skill_id, version)
        ) STRICT;
        INSERT INTO guideline_versions (skill_id, version, text, created_at, author)
            SELECT skill_id, 1, text, created_at, 'admin' FROM skill_guidelines;
        DROP TABLE skill_guidelines;
        ALTER TABLE guideline_versions RENAME TO skill_guidelines;
    """)
