CREATE TABLE carryovers (
	session    TEXT   NOT NULL PRIMARY KEY REFERENCES sessions (id),
	dir        TEXT   NOT NULL,
	env        TEXT   NOT NULL,
	custom     TEXT   NOT NULL,
	updated_at BIGINT NOT NULL
);
CREATE TABLE "checkpoint_packs" (
	checkpoint TEXT   NOT NULL REFERENCES "checkpoints" (id),
	ordinal    BIGINT NOT NULL,
	pack       TEXT   NOT NULL,
	PRIMARY KEY (checkpoint, ordinal)
) WITHOUT ROWID;
CREATE INDEX checkpoint_packs_by_pack ON checkpoint_packs (pack);
CREATE TABLE "checkpoints" (
	id                  TEXT   NOT NULL PRIMARY KEY,
	session             TEXT   NOT NULL REFERENCES sessions (id),
	run                 TEXT   NOT NULL,
	epoch               BIGINT NOT NULL,
	parent              TEXT   NOT NULL,
	state               TEXT   NOT NULL,
	format              TEXT   NOT NULL,
	root                TEXT   NOT NULL,
	root_bytes          BIGINT NOT NULL,
	conversation        TEXT   NOT NULL,
	conversation_reason TEXT   NOT NULL,
	workspace           TEXT   NOT NULL,
	workspace_reason    TEXT   NOT NULL,
	base                TEXT   NOT NULL,
	agent_conversation  TEXT   NOT NULL,
	agent               TEXT   NOT NULL,
	tree_digest         TEXT   NOT NULL,
	entries             BIGINT NOT NULL,
	bytes               BIGINT NOT NULL,
	stored              BIGINT NOT NULL,
	processes           TEXT   NOT NULL,
	capturing_at        BIGINT NOT NULL,
	sealed_at           BIGINT NOT NULL
);
CREATE INDEX checkpoints_capturing ON checkpoints (session) WHERE state = 'capturing';
CREATE UNIQUE INDEX checkpoints_chain ON checkpoints (session, parent) WHERE state = 'sealed';
CREATE INDEX checkpoints_in_order ON checkpoints (session, capturing_at, id);
CREATE INDEX checkpoints_of_root ON checkpoints (root);
CREATE TABLE counters (
	name  TEXT   NOT NULL PRIMARY KEY,
	value BIGINT NOT NULL
);
CREATE TABLE events (
	session TEXT   NOT NULL,
	seq     BIGINT NOT NULL,
	at      BIGINT NOT NULL,
	type    TEXT   NOT NULL,
	turn    TEXT   NOT NULL,
	run     TEXT   NOT NULL,
	data    TEXT   NOT NULL,
	PRIMARY KEY (session, seq)
);
CREATE TABLE exec_inputs (
	exec TEXT     NOT NULL PRIMARY KEY REFERENCES execs (id),
	data BLOB NOT NULL
);
CREATE TABLE exec_outputs (
	exec TEXT     NOT NULL PRIMARY KEY REFERENCES execs (id),
	data BLOB NOT NULL
);
CREATE TABLE execs (
	id         TEXT   NOT NULL PRIMARY KEY,
	session    TEXT   NOT NULL REFERENCES sessions (id),
	number     BIGINT NOT NULL,
	state      TEXT   NOT NULL,
	detached   BIGINT NOT NULL,
	spec       TEXT   NOT NULL,
	epoch      BIGINT NOT NULL,
	queued_at  BIGINT NOT NULL,
	started_at BIGINT NOT NULL,
	ended_at   BIGINT NOT NULL,
	ending     TEXT   NOT NULL,
	killed     BIGINT NOT NULL,
	reason     TEXT   NOT NULL,
	result     TEXT   NOT NULL,
	rate       TEXT   NOT NULL,
	cost       BIGINT NOT NULL,
	UNIQUE (session, number)
);
CREATE INDEX execs_open ON execs (session, detached, number)
	WHERE state IN ('parked', 'queued', 'running');
CREATE TABLE idempotency (
	project    TEXT     NOT NULL,
	key        TEXT     NOT NULL,
	hash       TEXT     NOT NULL,
	status     BIGINT   NOT NULL,
	body       BLOB NOT NULL,
	created_at BIGINT   NOT NULL,
	expires_at BIGINT   NOT NULL,
	PRIMARY KEY (project, key)
);
CREATE INDEX idempotency_expiry ON idempotency (expires_at);
CREATE TABLE "interactions" (
	id         TEXT   NOT NULL PRIMARY KEY,
	session    TEXT   NOT NULL REFERENCES sessions (id),
	run        TEXT   NOT NULL,
	exec       TEXT   NOT NULL,
	kind       TEXT   NOT NULL,
	state      TEXT   NOT NULL,
	ref        TEXT   NOT NULL,
	request    TEXT   NOT NULL,
	options    TEXT   NOT NULL,
	opened_at  BIGINT NOT NULL,
	expires_at BIGINT NOT NULL,
	ended_at   BIGINT NOT NULL,
	answer     TEXT   NOT NULL,
	reason     TEXT   NOT NULL
);
CREATE INDEX interactions_in_order ON interactions (session, opened_at, id);
CREATE UNIQUE INDEX interactions_open ON interactions (session, run, ref) WHERE state = 'open';
CREATE TABLE keys (
	id         TEXT   NOT NULL PRIMARY KEY,
	project    TEXT   NOT NULL,
	kind       TEXT   NOT NULL,
	name       TEXT   NOT NULL,
	scopes     TEXT   NOT NULL,
	hash       TEXT   NOT NULL UNIQUE,
	hint       TEXT   NOT NULL,
	created_at BIGINT NOT NULL,
	revoked_at BIGINT NOT NULL
);
CREATE INDEX keys_in_order ON keys (project, created_at, id);
CREATE TABLE lease_states (
	session    TEXT     NOT NULL,
	epoch      BIGINT   NOT NULL,
	state      BLOB NOT NULL,
	updated_at BIGINT   NOT NULL,
	PRIMARY KEY (session, epoch),
	FOREIGN KEY (session, epoch) REFERENCES leases (session, epoch)
);
CREATE TABLE leases (
	session      TEXT   NOT NULL REFERENCES sessions (id),
	epoch        BIGINT NOT NULL,
	state        TEXT   NOT NULL,
	driver       TEXT   NOT NULL,
	isolation    TEXT   NOT NULL,
	handle       TEXT   NOT NULL,
	requested_at BIGINT NOT NULL,
	granted_at   BIGINT NOT NULL,
	touched_at   BIGINT NOT NULL,
	ended_at     BIGINT NOT NULL,
	ceiling      BIGINT NOT NULL,
	hold         BIGINT NOT NULL,
	end_reason   TEXT   NOT NULL,
	restored     TEXT   NOT NULL,
	conversation TEXT   NOT NULL,
	destroyed_at BIGINT NOT NULL, visited_at BIGINT NOT NULL DEFAULT 0, save_processes BIGINT NOT NULL DEFAULT 0, resumed BIGINT NOT NULL DEFAULT 0,
	PRIMARY KEY (session, epoch)
);
CREATE UNIQUE INDEX leases_open ON leases (session)
	WHERE state NOT IN ('released', 'expired', 'lost');
CREATE INDEX leases_undestroyed ON leases (session, epoch)
	WHERE ended_at > 0 AND destroyed_at = 0;
CREATE TABLE runs (
	id          TEXT   NOT NULL PRIMARY KEY,
	session     TEXT   NOT NULL REFERENCES sessions (id),
	turn        TEXT   NOT NULL REFERENCES turns (id),
	state       TEXT   NOT NULL,
	epoch       BIGINT NOT NULL,
	queued_at   BIGINT NOT NULL,
	started_at  BIGINT NOT NULL,
	active_at   BIGINT NOT NULL,
	sealing_at  BIGINT NOT NULL,
	ended_at    BIGINT NOT NULL,
	cancel_at   BIGINT NOT NULL,
	stop_reason TEXT   NOT NULL,
	error       TEXT   NOT NULL,
	final       TEXT   NOT NULL
, model_error TEXT NOT NULL DEFAULT '');
CREATE UNIQUE INDEX runs_active ON runs (session)
	WHERE state NOT IN ('completed', 'failed', 'crashed', 'cancelled');
CREATE INDEX runs_in_order ON runs (session, queued_at, id);
CREATE INDEX runs_of_turn ON runs (turn);
CREATE TABLE schema_steps (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
CREATE TABLE sessions (
	id           TEXT   NOT NULL PRIMARY KEY,
	project      TEXT   NOT NULL,
	contract     TEXT   NOT NULL,
	title        TEXT   NOT NULL,
	runtime      TEXT   NOT NULL,
	metadata     TEXT   NOT NULL,
	base         TEXT   NOT NULL,
	state        TEXT   NOT NULL,
	close_reason TEXT   NOT NULL,
	created_at   BIGINT NOT NULL,
	updated_at   BIGINT NOT NULL,
	archived_at  BIGINT NOT NULL,
	deleted_at   BIGINT NOT NULL,
	last_seq     BIGINT NOT NULL,
	last_epoch   BIGINT NOT NULL,
	turns        BIGINT NOT NULL,
	active_run   TEXT   NOT NULL,
	last_run     TEXT   NOT NULL,
	worked       BIGINT NOT NULL,
	head         TEXT   NOT NULL
, sandbox TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '', budget TEXT NOT NULL DEFAULT '', bare TEXT NOT NULL DEFAULT '', client TEXT NOT NULL DEFAULT '', rotating BIGINT NOT NULL DEFAULT 0);
CREATE INDEX sessions_newest ON sessions (created_at, id);
CREATE INDEX sessions_newest_of_project ON sessions (project, created_at, id);
CREATE UNIQUE INDEX sessions_of_client ON sessions (project, client)
	WHERE client <> '' AND state <> 'closed' AND deleted_at = 0;
CREATE TABLE sqlite_sequence(name,seq);
CREATE TABLE tools (
	session      TEXT   NOT NULL REFERENCES sessions (id),
	name         TEXT   NOT NULL,
	description  TEXT   NOT NULL,
	input_schema TEXT   NOT NULL,
	argv         TEXT   NOT NULL,
	url          TEXT   NOT NULL,
	ask          BIGINT NOT NULL,
	updated_at   BIGINT NOT NULL,
	PRIMARY KEY (session, name)
);
CREATE TABLE turns (
	id           TEXT   NOT NULL PRIMARY KEY,
	session      TEXT   NOT NULL REFERENCES sessions (id),
	number       BIGINT NOT NULL,
	input        TEXT   NOT NULL,
	submitted_at BIGINT NOT NULL,
	UNIQUE (session, number)
);
CREATE TABLE work (
	kind       TEXT   NOT NULL,
	id         TEXT   NOT NULL,
	due_at     BIGINT NOT NULL,
	wanted_at  BIGINT NOT NULL,
	attempt    BIGINT NOT NULL,
	fence      BIGINT NOT NULL,
	owner      TEXT   NOT NULL,
	rev        BIGINT NOT NULL,
	payload    TEXT   NOT NULL,
	last_error TEXT   NOT NULL,
	dead_at    BIGINT NOT NULL,
	PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE INDEX work_due ON work (kind, due_at);
