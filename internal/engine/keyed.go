package engine

import (
	"sync"

	"github.com/sojourn-dev/sojourn"
)

// keyed is a lock for each session. Its zero value is ready.
type keyed struct {
	mu   sync.Mutex
	held map[sojourn.SessionID]*keyedLock
}

// keyedLock is the lock of one session. It is forgotten when nobody holds it or
// waits for it.
type keyedLock struct {
	sync.Mutex
	users int // under keyed.mu
}

// lock waits for the lock of a session. The caller gives it back with unlock.
func (k *keyed) lock(id sojourn.SessionID) (unlock func()) {
	k.mu.Lock()
	l := k.held[id]
	if l == nil {
		if k.held == nil {
			k.held = map[sojourn.SessionID]*keyedLock{}
		}
		l = &keyedLock{}
		k.held[id] = l
	}
	l.users++
	k.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.held, id)
		}
	}
}
