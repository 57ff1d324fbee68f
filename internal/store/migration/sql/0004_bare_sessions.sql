-- Sessions without an agent: their execs, what those start from, and the questions
-- that they wait for.

-- +goose Up
-- What only a session without an agent has, as JSON; beside it what is searched for.
ALTER TABLE sessions ADD COLUMN bare TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN client TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN rotating BIGINT NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX sessions_of_client ON sessions (project, client)
	WHERE client <> '' AND state <> 'closed' AND deleted_at = 0;

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

-- What an exec that has not ended is to read.
CREATE TABLE exec_inputs (
	exec TEXT     NOT NULL PRIMARY KEY REFERENCES execs (id),
	data {{blob}} NOT NULL
);

-- What an exec has written, when that is little.
CREATE TABLE exec_outputs (
	exec TEXT     NOT NULL PRIMARY KEY REFERENCES execs (id),
	data {{blob}} NOT NULL
);

CREATE TABLE carryovers (
	session    TEXT   NOT NULL PRIMARY KEY REFERENCES sessions (id),
	dir        TEXT   NOT NULL,
	env        TEXT   NOT NULL,
	custom     TEXT   NOT NULL,
	updated_at BIGINT NOT NULL
);

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

-- An interaction may be of an exec, so its run is no reference any more. SQLite can
-- only do that by making the table anew.
CREATE TABLE new_interactions (
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
INSERT INTO new_interactions
	SELECT id, session, run, '', kind, state, ref, request, options, opened_at, 0, ended_at, answer, reason
	FROM interactions;
DROP TABLE interactions;
ALTER TABLE new_interactions RENAME TO interactions;
CREATE INDEX interactions_in_order ON interactions (session, opened_at, id);
CREATE UNIQUE INDEX interactions_open ON interactions (session, run, ref) WHERE state = 'open';
