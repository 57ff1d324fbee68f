package store

import (
	"github.com/sojourn-dev/sojourn"
)

// Apply writes a change as a whole: rows, events in order, work orders. It must
// have been decided on facts that this transaction read, and be the first change
// since: on older facts it is refused with [ErrStale]. After the commit its
// events are published and the work engine is woken.
func (t *Tx) Apply(c sojourn.Change) error {
	s := c.Session
	if c.Created {
		s.LastSeq = 0
	}
	if err := t.writeSession(s, c.Created, len(c.Events)); err != nil {
		return err
	}
	if err := t.applyRows(c); err != nil {
		return err
	}
	if err := t.insertEvents(s.ID, s.LastSeq, c.Events); err != nil {
		return err
	}
	for _, o := range c.Work {
		var err error
		if o.Cancel {
			err = t.CancelWork(o.Kind, o.Key)
		} else {
			err = t.ScheduleWork(o.Kind, o.Key, o.Due, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// applyRows writes the rows that a change holds. Ended runs and leases come
// before those that follow them, so that the unique indexes see one at a time.
func (t *Tx) applyRows(c sojourn.Change) error {
	for _, turn := range c.Turns {
		if err := t.insertTurn(turn); err != nil {
			return err
		}
	}
	for _, ended := range [...]bool{true, false} {
		for _, r := range c.Runs {
			if r.State.Terminal() == ended {
				if err := t.putRun(r); err != nil {
					return err
				}
			}
		}
		for _, l := range c.Leases {
			if l.State.Terminal() == ended {
				if err := t.putLease(l); err != nil {
					return err
				}
			}
		}
	}
	for _, i := range c.Interactions {
		if err := t.putInteraction(i); err != nil {
			return err
		}
	}
	for _, cp := range c.Checkpoints {
		if err := t.putCheckpoint(cp); err != nil {
			return err
		}
	}
	return t.applyBare(c)
}

// applyBare writes the rows that only sessions without an agent have.
func (t *Tx) applyBare(c sojourn.Change) error {
	for _, x := range c.Execs {
		if err := t.putExec(x); err != nil {
			return err
		}
	}
	for _, in := range c.ExecInputs {
		if _, err := t.exec("write the input of an exec", insertExecInput, in.Exec, in.Data); err != nil {
			return err
		}
	}
	for _, tool := range c.Tools {
		if err := t.putTool(tool); err != nil {
			return err
		}
	}
	if c.Carryover != nil {
		return t.putCarryover(*c.Carryover)
	}
	return nil
}
