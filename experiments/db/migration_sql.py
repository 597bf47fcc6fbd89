"""The migrations in order, as names and SQL; never edit one after its release.

A new file is made from the tables as they are declared, and counts as having had all of them.
"""

# No column sizes: only ranking needs them, and newest-first does not rank.
SEARCH = """
CREATE VIRTUAL TABLE rollout_words USING fts5 (
  text, content = 'rollout', content_rowid = 'id', columnsize = 0,
  tokenize = 'unicode61 remove_diacritics 0'
);
CREATE VIRTUAL TABLE prompt_words USING fts5 (
  prompt_text, content = 'rollout_group', content_rowid = 'id', columnsize = 0,
  tokenize = 'unicode61 remove_diacritics 0'
);
"""

QUEUE = """
CREATE TABLE sweep (
  id INTEGER PRIMARY KEY,
  uid TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  created_at TEXT NOT NULL,
  spec_hash TEXT NOT NULL,
  axes TEXT NOT NULL
);
CREATE INDEX sweep_spec ON sweep (spec_hash);

CREATE TABLE queue_item (
  id INTEGER PRIMARY KEY,
  sweep_id INTEGER REFERENCES sweep (id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  state TEXT NOT NULL,
  created_at TEXT NOT NULL,
  settings TEXT NOT NULL,
  config TEXT NOT NULL,
  config_hash TEXT NOT NULL,
  lease_owner TEXT NOT NULL,
  lease_until REAL NOT NULL,
  run_id INTEGER REFERENCES run (id) ON DELETE SET NULL,
  note TEXT NOT NULL
);
CREATE INDEX queue_item_state ON queue_item (state, id);
CREATE INDEX queue_item_sweep ON queue_item (sweep_id);

CREATE INDEX run_config ON run (config_hash);
ALTER TABLE run ADD COLUMN sweep_id INTEGER REFERENCES sweep (id) ON DELETE SET NULL;
CREATE INDEX run_sweep ON run (sweep_id) WHERE sweep_id IS NOT NULL;
"""

# Narrow and append-only, so that a long run's rollouts can be sorted without reading texts.
ORDER = """
DROP INDEX IF EXISTS rollout_group_id;
CREATE INDEX IF NOT EXISTS rollout_of_group ON rollout (
  group_id, run_id, advantage, tokens, kl, clip_fraction
);
"""

# Covers the list of runs in its order: a row of `run` takes a whole page with its configuration.
LIST = """
CREATE INDEX IF NOT EXISTS run_list ON run (
  archived, created_at, short, uid, name, status, model, task, recipe, seed, step, total_steps,
  tokens, elapsed, started_at, ended_at, device, dataset_fingerprint, code_version, error, note,
  bytes, config_hash
);
"""

SPANS = """
ALTER TABLE rollout ADD COLUMN spans TEXT NOT NULL DEFAULT '';
"""

# A problem that nothing judged has no number of right samples.
UNJUDGED = """
CREATE TABLE judged_sample (
  evaluation_id INTEGER NOT NULL REFERENCES evaluation (id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  example_key TEXT NOT NULL,
  correct INTEGER,
  samples INTEGER NOT NULL,
  rewards TEXT NOT NULL,
  PRIMARY KEY (evaluation_id, position)
) WITHOUT ROWID;
INSERT INTO judged_sample SELECT evaluation_id, position, example_key, correct, samples, rewards
FROM evaluation_sample;
DROP TABLE evaluation_sample;
ALTER TABLE judged_sample RENAME TO evaluation_sample;
"""

# A deleted run is hidden until it is purged.
DELETED = """
ALTER TABLE run ADD COLUMN deleted_at TEXT;
ALTER TABLE run ADD COLUMN purging INTEGER NOT NULL DEFAULT 0;
DROP INDEX IF EXISTS run_list;
CREATE INDEX run_list ON run (
  archived, created_at, short, uid, name, status, model, task, recipe, seed, step, total_steps,
  tokens, elapsed, started_at, ended_at, device, dataset_fingerprint, code_version, error, note,
  bytes, config_hash, deleted_at
);
"""

REBUILD = """
INSERT INTO rollout_words (rollout_words) VALUES ('rebuild');
INSERT INTO prompt_words (prompt_words) VALUES ('rebuild');
"""

MIGRATIONS = {
    "m001_runs": "",  # every file has had it
    "m002_search": SEARCH + REBUILD,
    "m003_queue": QUEUE,
    "m004_order": ORDER,
    "m005_list": LIST,
    "m006_spans": SPANS,
    "m007_unjudged": UNJUDGED,
    "m008_deleted": DELETED,
}
CURRENT = len(MIGRATIONS)
