package image

import (
	"sync"
	"time"
)

// Stage is a part of getting an image.
type Stage string

// The stages, in order. Not every image goes through all of them.
const (
	StageResolve  Stage = "resolve"  // the registry is asked what the reference means
	StageDownload Stage = "download" // Bytes of Total, compressed
	StageUnpack   Stage = "unpack"   // Bytes of Total, as they are in the archive
	StageVerify   Stage = "verify"   // the tree is looked through once
	StageReady    Stage = "ready"    // the image is there
)

// Progress is how far getting an image is.
type Progress struct {
	Reference string
	Stage     Stage
	Bytes     int64
	Total     int64 // 0 is unknown
}

// progressEvery is how often progress within a stage is told at most.
const progressEvery = 200 * time.Millisecond

// teller tells the progress of one image, one call at a time.
type teller struct {
	tell func(Progress)

	mu   sync.Mutex
	last time.Time
	now  Progress
}

func newTeller(tell func(Progress), reference string) *teller {
	return &teller{tell: tell, now: Progress{Reference: reference}}
}

// stage begins a stage.
func (t *teller) stage(s Stage, total int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now.Stage, t.now.Bytes, t.now.Total = s, 0, max(total, 0)
	t.tellLocked()
}

// add says that n more bytes are done; a negative n takes some back, for another try.
func (t *teller) add(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now.Bytes += n
	if t.now.Bytes == t.now.Total || time.Since(t.last) >= progressEvery {
		t.tellLocked()
	}
}

func (t *teller) tellLocked() {
	t.last = time.Now()
	if t.tell != nil {
		t.tell(t.now)
	}
}
