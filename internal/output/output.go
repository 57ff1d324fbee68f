package output

import "sync"

// Cut is why not all of an output was kept. It is empty when all was.
type Cut string

// The reasons.
const (
	CutLimit   Cut = "limit"    // there was more than [Config.MaxBytes]
	CutNoSpace Cut = "no_space" // the disk was full, or as good as
	CutLost    Cut = "lost"     // it could not be had again; see [Writer.Skip]
)

// Sizes says how much an exec wrote, and how much of it is kept.
type Sizes struct {
	Stdout, Stderr int64 // bytes written by the exec
	KeptTotal      int64 // bytes kept: the first ones, of both streams
	Cut            Cut   // why KeptTotal is less than all
}

// output is one output as its writer and its readers share it.
type output struct {
	mu      sync.Mutex
	view    view
	files   files
	refs    int           // writer and readers; the last one closes the files
	over    bool          // nothing more will come: finished, or its writer is gone
	changed chan struct{} // made by who waits, closed by the next change
}

// publish shows readers a new view.
func (o *output) publish(v view, f files, over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.view, o.files, o.over = v, f, over
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// snapshot returns what there is, whether that is all that will be, and, when it
// is not, a channel that is closed when there is more.
func (o *output) snapshot() (view, bool, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.view, o.over, o.changed
}

// wait is snapshot for who will wait: there is a channel unless it is over.
func (o *output) wait() (view, bool, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil && !o.over {
		o.changed = make(chan struct{})
	}
	return o.view, o.over, o.changed
}

// ended reports whether nothing more will come.
func (o *output) ended() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

// release gives up a reference.
func (o *output) release() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refs--; o.refs > 0 {
		return nil
	}
	return o.files.close()
}
