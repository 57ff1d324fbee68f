package store

import (
	"github.com/sojourn-dev/sojourn"
)

const (
	upsertCarryover = `INSERT INTO carryovers (session, dir, env, custom, updated_at) VALUES ($1, $2, $3, $4, $5)
	ON CONFLICT (session) DO UPDATE SET dir = excluded.dir, env = excluded.env, custom = excluded.custom,
	updated_at = excluded.updated_at`
	selectCarryover = `SELECT session, dir, env, custom, updated_at FROM carryovers WHERE session = $1`

	toolColumns = `session, name, description, input_schema, argv, url, ask, updated_at`
	upsertTool  = `INSERT INTO tools (` + toolColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
	ON CONFLICT (session, name) DO UPDATE SET description = excluded.description, input_schema = excluded.input_schema,
	argv = excluded.argv, url = excluded.url, ask = excluded.ask, updated_at = excluded.updated_at`
	selectTool  = `SELECT ` + toolColumns + ` FROM tools WHERE session = $1 AND name = $2`
	selectTools = `SELECT ` + toolColumns + ` FROM tools WHERE session = $1 ORDER BY name`
)

func scanCarryover(row scanner) (c sojourn.Carryover, err error) {
	var env, custom string
	var updated int64
	if err := row.Scan(&c.Session, &c.Dir, &env, &custom, &updated); err != nil {
		return c, err
	}
	c.UpdatedAt = instant(updated)
	if err := decode(env, &c.Env); err != nil {
		return c, err
	}
	return c, decode(custom, &c.Custom)
}

// Carryover returns what the execs of a session start from; that of a session
// which was given none is empty.
func (t *Tx) Carryover(session sojourn.SessionID) (sojourn.Carryover, error) {
	found, err := collect(t, "carryover", scanCarryover, selectCarryover, session)
	if err != nil || len(found) == 0 {
		return sojourn.Carryover{Session: session}, err
	}
	return found[0], nil
}

func (t *Tx) putCarryover(c sojourn.Carryover) error {
	env, err := encoded(c.Env, len(c.Env) == 0)
	if err != nil {
		return t.fail("encode a carryover", err)
	}
	custom, err := encoded(c.Custom, len(c.Custom) == 0)
	if err != nil {
		return t.fail("encode a carryover", err)
	}
	_, err = t.exec("write carryover", upsertCarryover, c.Session, c.Dir, env, custom, micros(c.UpdatedAt))
	return err
}

func scanTool(row scanner) (x sojourn.Tool, err error) {
	var schema, argv string
	var ask, updated int64
	if err := row.Scan(&x.Session, &x.Name, &x.Description, &schema, &argv, &x.URL, &ask, &updated); err != nil {
		return x, err
	}
	x.InputSchema, x.Ask, x.UpdatedAt = raw(schema), ask != 0, instant(updated)
	return x, decode(argv, &x.Argv)
}

// Tool returns a tool of a session by its name.
func (t *Tx) Tool(session sojourn.SessionID, name string) (sojourn.Tool, error) {
	return one(t, "tool", scanTool, selectTool, session, name)
}

// Tools returns the tools of a session by name.
func (t *Tx) Tools(session sojourn.SessionID) ([]sojourn.Tool, error) {
	return collect(t, "tools", scanTool, selectTools, session)
}

func (t *Tx) putTool(x sojourn.Tool) error {
	argv, err := encoded(x.Argv, len(x.Argv) == 0)
	if err != nil {
		return t.fail("encode a tool", err)
	}
	_, err = t.exec("write tool", upsertTool, x.Session, x.Name, x.Description, string(x.InputSchema), argv, x.URL,
		flag(x.Ask), micros(x.UpdatedAt))
	return err
}
