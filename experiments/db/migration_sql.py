"""The migrations in order, as names and SQL; never edit one after its release."""

RUNS = """
CREATE TABLE run (
  id INTEGER PRIMARY KEY,
  uid TEXT NOT NULL UNIQUE,
  short TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  status TEXT NOT NULL,
  created_at TEXT NOT NULL,
  started_at TEXT,
  ended_at TEXT,
  model TEXT NOT NULL,
  task TEXT NOT NULL,
  recipe TEXT NOT NULL,
  seed INTEGER NOT NULL,
  config_hash TEXT NOT NULL,
  code_version TEXT NOT NULL,
  versions TEXT NOT NULL,
  device TEXT NOT NULL,
  dataset_fingerprint TEXT NOT NULL,
  total_steps INTEGER NOT NULL,
  step INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  elapsed REAL NOT NULL,
  bytes INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  error TEXT NOT NULL,
  note TEXT NOT NULL,
  archived INTEGER NOT NULL,
  parent_id INTEGER REFERENCES run (id) ON DELETE SET NULL,
  config TEXT NOT NULL
);
CREATE INDEX run_name ON run (name);
CREATE INDEX run_status ON run (status);
CREATE INDEX run_parent ON run (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE attempt (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  n INTEGER NOT NULL,
  from_step INTEGER NOT NULL,
  until_step INTEGER,
  host TEXT NOT NULL,
  boot TEXT NOT NULL,
  pid INTEGER NOT NULL,
  pid_start TEXT NOT NULL,
  started_at TEXT NOT NULL,
  heartbeat TEXT NOT NULL,
  progress_at TEXT NOT NULL,
  ended_at TEXT,
  cause TEXT NOT NULL,
  rss_gb REAL NOT NULL,
  free_gb REAL NOT NULL,
  slept_s REAL NOT NULL,
  UNIQUE (run_id, n)
);

CREATE TABLE run_param (
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  path TEXT NOT NULL,
  value TEXT NOT NULL,
  number REAL,
  PRIMARY KEY (run_id, path)
) WITHOUT ROWID;
CREATE INDEX run_param_path ON run_param (path, number);

CREATE TABLE run_tag (
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  tag TEXT NOT NULL,
  PRIMARY KEY (run_id, tag)
) WITHOUT ROWID;
CREATE INDEX run_tag_tag ON run_tag (tag);

CREATE TABLE event (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  at REAL NOT NULL,
  step INTEGER NOT NULL,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL,
  hidden INTEGER NOT NULL
);
CREATE INDEX event_run ON event (run_id, seq);
CREATE INDEX event_kind ON event (run_id, kind, seq);

CREATE TABLE alert (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  rule TEXT NOT NULL,
  severity TEXT NOT NULL,
  first_step INTEGER NOT NULL,
  last_step INTEGER NOT NULL,
  count INTEGER NOT NULL,
  value REAL,
  "limit" REAL,
  group_index INTEGER,
  explanation TEXT NOT NULL,
  remedy TEXT NOT NULL,
  muted INTEGER NOT NULL,
  UNIQUE (run_id, rule)
);

CREATE TABLE key_set (
  id INTEGER PRIMARY KEY,
  keys TEXT NOT NULL UNIQUE
);

CREATE TABLE step (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  step INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  at REAL NOT NULL,
  elapsed REAL,
  tokens INTEGER NOT NULL,
  key_set INTEGER NOT NULL REFERENCES key_set (id),
  skipped TEXT NOT NULL,
  hidden INTEGER NOT NULL
);
CREATE UNIQUE INDEX step_run ON step (run_id, step, attempt);
CREATE INDEX step_seq ON step (run_id, seq);

CREATE TABLE update_pass (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  step INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  pass INTEGER NOT NULL,
  minibatch INTEGER NOT NULL,
  loss REAL,
  clip_low REAL,
  clip_high REAL,
  kl_to_old REAL,
  grad_norm REAL,
  learning_rate REAL,
  stop_reason TEXT NOT NULL,
  hidden INTEGER NOT NULL
);
CREATE INDEX update_pass_run ON update_pass (run_id, step);
CREATE INDEX update_pass_seq ON update_pass (run_id, seq);

CREATE TABLE metric_key (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
);

CREATE TABLE metric (
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  key_id INTEGER NOT NULL REFERENCES metric_key (id),
  step INTEGER NOT NULL,
  value REAL,
  PRIMARY KEY (run_id, key_id, step)
) WITHOUT ROWID;

CREATE TABLE metric_hidden (
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  key_id INTEGER NOT NULL REFERENCES metric_key (id),
  step INTEGER NOT NULL,
  value REAL,
  PRIMARY KEY (run_id, attempt, key_id, step)
) WITHOUT ROWID;

CREATE TABLE metric_summary (
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  key_id INTEGER NOT NULL REFERENCES metric_key (id),
  first REAL,
  first_step INTEGER,
  last REAL,
  last_step INTEGER,
  min REAL,
  min_step INTEGER,
  max REAL,
  max_step INTEGER,
  mean REAL,
  count INTEGER NOT NULL,
  nonfinite INTEGER NOT NULL,
  PRIMARY KEY (run_id, key_id)
) WITHOUT ROWID;
CREATE INDEX metric_summary_max ON metric_summary (key_id, max);

CREATE TABLE rollout_group (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  step INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  tokens_seq INTEGER,
  idx INTEGER NOT NULL,
  origin TEXT NOT NULL,
  example_key TEXT NOT NULL,
  prompt_hash TEXT NOT NULL,
  prompt_text TEXT NOT NULL,
  target TEXT NOT NULL,
  sampling TEXT NOT NULL,
  reward_mean REAL,
  reward_std REAL,
  no_signal TEXT NOT NULL,
  refill INTEGER NOT NULL,
  has_tokens INTEGER NOT NULL,
  nonfinite TEXT NOT NULL,
  hidden INTEGER NOT NULL
);
CREATE INDEX rollout_group_prompt ON rollout_group (run_id, prompt_hash, step);
CREATE INDEX rollout_group_origin ON rollout_group (run_id, origin, step);
CREATE INDEX rollout_group_seq ON rollout_group (run_id, seq);
CREATE INDEX rollout_group_tokens ON rollout_group (run_id, tokens_seq);

CREATE TABLE rollout (
  id INTEGER PRIMARY KEY,
  group_id INTEGER NOT NULL REFERENCES rollout_group (id) ON DELETE CASCADE,
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  idx INTEGER NOT NULL,
  text TEXT NOT NULL,
  reward REAL,
  advantage REAL,
  tokens INTEGER NOT NULL,
  finish TEXT NOT NULL,
  clip_fraction REAL,
  kl REAL,
  nonfinite TEXT NOT NULL
);
CREATE INDEX rollout_group_id ON rollout (group_id);
CREATE INDEX rollout_reward_order ON rollout (run_id, reward);

CREATE TABLE rollout_reward (
  rollout_id INTEGER NOT NULL REFERENCES rollout (id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  function TEXT NOT NULL,
  value REAL,
  weight REAL,
  reason TEXT NOT NULL,
  nonfinite TEXT NOT NULL,
  PRIMARY KEY (rollout_id, position)
) WITHOUT ROWID;

CREATE TABLE evaluation (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  step INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  at REAL NOT NULL,
  moment TEXT NOT NULL,
  mode TEXT NOT NULL,
  problems INTEGER NOT NULL,
  samples INTEGER NOT NULL,
  metrics TEXT NOT NULL,
  seconds REAL,
  hidden INTEGER NOT NULL
);
CREATE INDEX evaluation_run ON evaluation (run_id, seq);

CREATE TABLE evaluation_sample (
  evaluation_id INTEGER NOT NULL REFERENCES evaluation (id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  example_key TEXT NOT NULL,
  correct INTEGER NOT NULL,
  samples INTEGER NOT NULL,
  rewards TEXT NOT NULL,
  PRIMARY KEY (evaluation_id, position)
) WITHOUT ROWID;

CREATE TABLE run_live (
  run_id INTEGER PRIMARY KEY REFERENCES run (id) ON DELETE CASCADE,
  lease_until REAL NOT NULL,
  version INTEGER NOT NULL,
  updated_at REAL NOT NULL,
  board TEXT NOT NULL
);

CREATE TABLE control (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  verb TEXT NOT NULL,
  argument TEXT NOT NULL,
  asked_at TEXT NOT NULL,
  asked_by TEXT NOT NULL,
  taken_at TEXT,
  outcome TEXT NOT NULL
);
CREATE INDEX control_open ON control (run_id, attempt) WHERE outcome = '';
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

REBUILD = """
INSERT INTO rollout_words (rollout_words) VALUES ('rebuild');
INSERT INTO prompt_words (prompt_words) VALUES ('rebuild');
"""

MIGRATIONS = {
    "m001_runs": RUNS,
    "m002_search": SEARCH + REBUILD,
    "m003_queue": QUEUE,
    "m004_order": ORDER,
    "m005_list": LIST,
    "m006_spans": SPANS,
}
CURRENT = len(MIGRATIONS)
