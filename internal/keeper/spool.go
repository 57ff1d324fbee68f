package keeper

import (
	"cmp"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	// chunkBytes is the most one chunk holds, and what a spool may go over its
	// limit by.
	chunkBytes = 64 << 10
	// chunkCost is what a chunk weighs beside its bytes, so that many tiny
	// writes cannot take more memory than the limit allows.
	chunkCost = 128
	// blockUse is how much of a block output must fill to stay in it.
	blockUse = chunkBytes * 3 / 4
	// readChunks bounds the chunks of one read.
	readChunks = 4096
	// followGrace is how long a spool that is followed waits for a reader who has
	// not come for what is there.
	followGrace = 10 * time.Second
)

// chunk is a piece of output. Once sealed it never changes, since somebody has
// seen it; until then output of the same stream may be added to it.
type chunk struct {
	seq    int64
	offset int64
	stream string
	data   []byte
	in     *block // that data lies in, held by the spool; or nil
	sealed bool
}

// slack is the memory that the chunk takes and does not use.
func (c *chunk) slack() int64 {
	if c.in == nil {
		return 0
	}
	return int64(len(c.in.buf) - len(c.data))
}

// exit is how a process ended.
type exit struct {
	code    *int   // nil when a signal ended it or nothing was run
	signal  string // "SIGKILL"
	failure string // why it could not be started
	kind    string // one of the link.Failure words

	timedOut         bool // it was made to end because its time was up
	runTime, cpuTime time.Duration
	maxRSS           int64 // bytes; 0 when not known
}

// wire is what an exit tells beside code and signal.
func (e *exit) wire() link.ProcessEnding {
	return link.ProcessEnding{
		TimedOut: e.timedOut, RunTimeUs: e.runTime.Microseconds(), CPUTimeUs: e.cpuTime.Microseconds(), MaxRSSBytes: e.maxRSS,
	}
}

// spool holds the output of one process in order. Chunks, the exit and the
// end each take a sequence number, from 1 on.
type spool struct {
	ack    bool  // keep everything until acknowledged, and make writers wait
	follow bool  // a ring that makes writers wait for a reader who keeps coming
	limit  int64 // bound on weight

	mu        sync.Mutex
	chunks    []chunk
	nextSeq   int64
	bytes     int64 // of the chunks held
	slack     int64 // that these take beside
	offset    int64 // bytes ever appended
	dropped   int64 // bytes a ring has let go unacknowledged
	discarded int64 // bytes that came after the end
	timedOut  bool  // the process is made to end because its time is up
	exit      *exit
	exitSeq   int64
	closed    bool
	closedSeq int64
	seen      int64         // with follow: the last number that the reader says it has
	dueAt     time.Time     // with follow: since when there is something that it has not
	shut      bool          // removed: writers fail
	news      chan struct{} // closed when there is more to read; nil when nobody waits
	room      chan struct{} // closed when there may be room to write; nil when nobody waits
	much      chan struct{} // closed when there is as much as a reader gathers; nil when none does
	muchAt    int64         // the offset at which there is
}

func newSpool(ack bool, limit int64) *spool {
	return &spool{ack: ack, limit: limit, nextSeq: 1}
}

// waitLocked is a channel that wake will close.
func waitLocked(ch *chan struct{}) <-chan struct{} {
	if *ch == nil {
		*ch = make(chan struct{})
	}
	return *ch
}

func wakeLocked(ch *chan struct{}) {
	if *ch != nil {
		close(*ch)
		*ch = nil
	}
}

func (s *spool) weightLocked() int64 {
	return s.bytes + s.slack + int64(len(s.chunks))*chunkCost
}

// append adds output of at most chunkBytes, which lies in a block that its caller
// holds, or in none. On a full acknowledged spool it
// waits for room. After the end it counts the bytes and drops them. It fails
// with io.ErrClosedPipe when the process has been removed.
func (s *spool) append(stream string, data []byte, in *block) error {
	for {
		s.mu.Lock()
		switch {
		case s.shut:
			s.mu.Unlock()
			return io.ErrClosedPipe
		case s.closed:
			s.discarded += int64(len(data))
			s.mu.Unlock()
			return nil
		case s.weightLocked() < s.limit, !s.ack && !s.awaitedLocked():
			s.addLocked(stream, data, in)
			s.mu.Unlock()
			return nil
		}
		changed, patience := waitLocked(&s.room), time.Until(s.dueAt.Add(followGrace))
		ack := s.ack
		s.mu.Unlock()
		if ack {
			<-changed
			continue
		}
		t := time.NewTimer(patience)
		select {
		case <-changed:
		case <-t.C:
		}
		t.Stop()
	}
}

// awaitedLocked reports whether the oldest output is still to be fetched by a
// reader who may be expected to come.
func (s *spool) awaitedLocked() bool {
	return s.follow && len(s.chunks) > 0 && s.chunks[0].seq > s.seen && time.Since(s.dueAt) < followGrace
}

func (s *spool) addLocked(stream string, data []byte, in *block) {
	if len(data) == 0 {
		return
	}
	if s.follow && s.seen == s.nextSeq-1 {
		s.dueAt = time.Now()
	}
	if in != nil && len(data) < blockUse {
		in = nil
	}
	if in != nil || !s.extendLocked(stream, data) {
		c := chunk{seq: s.nextSeq, offset: s.offset, stream: stream, data: data, in: in}
		if in == nil {
			c.data = slices.Clone(data)
		}
		in.hold()
		s.chunks = append(s.chunks, c)
		s.slack += c.slack()
		s.nextSeq++
	}
	s.bytes += int64(len(data))
	s.offset += int64(len(data))
	for !s.ack && s.weightLocked() > s.limit && len(s.chunks) > 1 && !s.awaitedLocked() {
		s.dropped += int64(len(s.chunks[0].data))
		s.popLocked()
	}
	wakeLocked(&s.news)
	if s.offset >= s.muchAt || s.weightLocked() >= s.limit {
		wakeLocked(&s.much)
	}
}

// extendLocked adds data to the newest chunk if nobody has seen it yet.
func (s *spool) extendLocked(stream string, data []byte) bool {
	if len(s.chunks) == 0 {
		return false
	}
	last := &s.chunks[len(s.chunks)-1]
	if last.sealed || last.stream != stream || last.seq != s.nextSeq-1 || len(last.data)+len(data) > chunkBytes {
		return false
	}
	s.slack -= last.slack()
	last.data = append(last.data, data...)
	s.slack += last.slack()
	return true
}

func (s *spool) popLocked() {
	c := &s.chunks[0]
	s.bytes -= int64(len(c.data))
	s.slack -= c.slack()
	c.in.release()
	*c = chunk{} // release the bytes; the slice lives on
	s.chunks = s.chunks[1:]
}

// release drops the chunks up to and including seq.
func (s *spool) release(seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.chunks)
	for len(s.chunks) > 0 && s.chunks[0].seq <= seq {
		s.popLocked()
	}
	if len(s.chunks) < n {
		wakeLocked(&s.room)
	}
}

// finish records how the process ended; only the first call counts.
func (s *spool) finish(e exit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exit != nil {
		return false
	}
	e.timedOut = s.timedOut
	s.exit, s.exitSeq = &e, s.nextSeq
	s.nextSeq++
	wakeLocked(&s.news)
	return true
}

// expire notes that the process still runs although its time is up.
func (s *spool) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timedOut = true // nobody reads it once there is an exit
}

// close ends the output.
func (s *spool) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed, s.closedSeq = true, s.nextSeq
	s.nextSeq++
	s.wakeAllLocked()
}

func (s *spool) wakeAllLocked() {
	wakeLocked(&s.news)
	wakeLocked(&s.room)
	wakeLocked(&s.much)
}

// remove forgets the output and fails whoever still writes.
func (s *spool) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.chunks) > 0 {
		s.popLocked()
	}
	s.shut, s.chunks = true, nil
	s.wakeAllLocked()
}

// discard counts bytes that came after the end.
func (s *spool) discard(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discarded += int64(n)
}

// view is what a read found. The memory of its chunks is its reader's until it is
// released.
type view struct {
	chunks    []chunk
	nextSeq   int64
	firstSeq  int64
	dropped   int64
	exit      *exit
	exitSeq   int64
	closed    bool // and no chunk is left after these
	closedSeq int64
	shut      bool
}

func (v *view) release() {
	for _, c := range v.chunks {
		c.in.release()
	}
}

// state is what a read that waits has to know.
type state struct {
	news    bool            // there is something the reader has not seen
	full    bool            // there will be no more than a read can take
	shut    bool            // the process was removed
	changed <-chan struct{} // closed when any of it may be otherwise
}

// look says how things stand for a reader of at most maxBytes after a sequence
// number, and seals nothing. One who gathers is not woken for each bit of news.
func (s *spool) look(after int64, maxBytes int, gathering bool) state {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seenLocked(after)
	total, n := 0, 0
	for _, c := range s.chunks[s.fromLocked(after):] {
		if total += len(c.data); total >= maxBytes || n == readChunks {
			break
		}
		n++
	}
	st := state{
		news: total > 0 || s.closed || s.shut || (s.exit != nil && s.exitSeq > after),
		full: s.closed || total >= maxBytes || n == readChunks || total > 0 && s.weightLocked() >= s.limit,
		shut: s.shut,
	}
	switch {
	case st.full:
	case gathering:
		if at := s.offset + int64(maxBytes-total); s.much == nil || at < s.muchAt {
			s.muchAt = at
		}
		st.changed = waitLocked(&s.much)
	default:
		st.changed = waitLocked(&s.news)
	}
	return st
}

// fromLocked is the index of the first chunk after a sequence number.
func (s *spool) fromLocked(after int64) int {
	from, _ := slices.BinarySearchFunc(s.chunks, after+1, func(c chunk, seq int64) int { return cmp.Compare(c.seq, seq) })
	return from
}

// seenLocked notes for a spool that is followed how far its reader has come.
func (s *spool) seenLocked(after int64) {
	if !s.follow {
		return
	}
	moved := s.seen != after
	s.seen, s.dueAt = after, time.Now()
	if moved && s.weightLocked() >= s.limit {
		wakeLocked(&s.room) // a writer may have been waiting for this reader
	}
}

// read returns the chunks after a sequence number, up to maxBytes but at least
// one. What it returns is sealed.
func (s *spool) read(after int64, maxBytes int) view {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seenLocked(after)
	v := view{
		nextSeq: s.nextSeq, firstSeq: s.firstSeqLocked(), dropped: s.dropped,
		exit: s.exit, exitSeq: s.exitSeq, closedSeq: s.closedSeq, shut: s.shut,
	}
	from := s.fromLocked(after)
	to, total := from, 0
	for to < len(s.chunks) && to-from < readChunks {
		total += len(s.chunks[to].data)
		if to > from && total > maxBytes {
			break
		}
		s.chunks[to].sealed = true
		s.chunks[to].in.hold()
		to++
	}
	v.chunks = slices.Clone(s.chunks[from:to])
	if to < len(s.chunks) {
		v.nextSeq = s.chunks[to-1].seq + 1
	}
	v.closed = s.closed && to == len(s.chunks)
	return v
}

// last is the newest sequence number in use.
func (s *spool) last() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextSeq - 1
}

func (s *spool) firstSeqLocked() int64 {
	if len(s.chunks) > 0 {
		return s.chunks[0].seq
	}
	return s.nextSeq
}

// weight is the memory the spool accounts for.
func (s *spool) weight() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.weightLocked()
}

// describe fills in the spool's part of a list row.
func (s *spool) describe(row *link.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	row.FirstSeq, row.NextSeq = s.firstSeqLocked(), s.nextSeq
	row.HeldBytes, row.DroppedBytes, row.DiscardedBytes = s.bytes, s.dropped, s.discarded
	row.Closed = s.closed
	if s.exit != nil {
		row.Exited, row.ExitCode, row.Signal = true, s.exit.code, s.exit.signal
		row.Failure, row.FailureKind, row.ProcessEnding = s.exit.failure, s.exit.kind, s.exit.wire()
	}
}

func (s *spool) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed || s.shut
}
