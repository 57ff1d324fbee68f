-- What sessions ask of their sandboxes and models, what draining a lease needs to know, and
-- the processes of a checkpoint.

-- +goose Up
ALTER TABLE sessions ADD COLUMN sandbox TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN model TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN budget TEXT NOT NULL DEFAULT '';
ALTER TABLE leases ADD COLUMN visited_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN save_processes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN resumed BIGINT NOT NULL DEFAULT 0;

-- A checkpoint of a drained lease may have no run before it, so its run is no
-- reference any more. SQLite can only do that by making the tables anew.
CREATE TABLE new_checkpoints (
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
INSERT INTO new_checkpoints
	SELECT id, session, run, epoch, parent, state, format, root, root_bytes, conversation, conversation_reason,
		workspace, workspace_reason, base, agent_conversation, agent, tree_digest, entries, bytes, stored, '',
		capturing_at, sealed_at
	FROM checkpoints;
CREATE TABLE new_checkpoint_packs (
	checkpoint TEXT   NOT NULL REFERENCES new_checkpoints (id),
	ordinal    BIGINT NOT NULL,
	pack       TEXT   NOT NULL,
	PRIMARY KEY (checkpoint, ordinal)
){{clustered}};
INSERT INTO new_checkpoint_packs SELECT checkpoint, ordinal, pack FROM checkpoint_packs;
DROP TABLE checkpoint_packs;
DROP TABLE checkpoints;
ALTER TABLE new_checkpoints RENAME TO checkpoints;
ALTER TABLE new_checkpoint_packs RENAME TO checkpoint_packs;
CREATE INDEX checkpoints_of_root ON checkpoints (root);
CREATE INDEX checkpoints_capturing ON checkpoints (session) WHERE state = 'capturing';
CREATE INDEX checkpoints_in_order ON checkpoints (session, capturing_at, id);
CREATE UNIQUE INDEX checkpoints_chain ON checkpoints (session, parent) WHERE state = 'sealed';
CREATE INDEX checkpoint_packs_by_pack ON checkpoint_packs (pack);
