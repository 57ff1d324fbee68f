package api

import (
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// readers is how many streams the benchmark holds open.
const readers = 1000

// BenchmarkStream delivers one event after the other to 1,000 readers of one
// log, each when all have the one before, and in the same run writes the same
// bytes to 1,000 plain sockets. The readers run in the same process, on the same
// CPUs, in both. It reports deliveries a second, CPU for each, and how many
// times the CPU of the plain sockets that is.
func BenchmarkStream(b *testing.B) {
	text := strings.Repeat("x", 150) // a frame of some 250 bytes in all
	plainTime, plainCPU := plainSockets(b, text)

	l := newTape()
	s := NewService(Config{Contract: testContract(), Auth: newDoor(), Settings: Settings{Rate: Rate{PerSecond: -1}}})
	streamer(l)(s)
	server := httptest.NewServer(s)
	defer server.Close()
	got := &counter{}
	for range readers {
		conn := got.dial(b, server.Listener.Addr().String())
		defer conn.Close()
		fmt.Fprintf(conn, "GET /stream HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer admin\r\n\r\n")
	}
	got.quiet()
	_, streamTime, streamCPU := got.measure(b, func() { l.append(text) })
	n := float64(b.N) * readers
	b.ReportMetric(n/streamTime.Seconds(), "events/s")
	b.ReportMetric(float64(streamCPU.Microseconds())/n, "µs-cpu/event")
	b.ReportMetric(float64(plainCPU.Microseconds())/n, "µs-cpu/plain")
	b.ReportMetric(float64(streamCPU)/float64(plainCPU), "x-plain-cpu")
	b.ReportMetric(streamTime.Seconds()/plainTime.Seconds(), "x-plain-time")
}

// plainSockets writes the bytes of a chunked frame to as many sockets, from a
// goroutine each.
func plainSockets(b *testing.B, text string) (time.Duration, time.Duration) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	l := newTape()
	l.append(text)
	frame := l.events[0].Encoded("", encodeTape)
	frame = fmt.Appendf(nil, "%x\r\n%s\r\n", len(frame), frame)
	var writers sync.WaitGroup
	defer writers.Wait()
	wake := make([]chan struct{}, readers)
	got := &counter{}
	for i := range readers {
		conn := got.dial(b, listener.Addr().String())
		defer conn.Close()
		served, err := listener.Accept()
		if err != nil {
			b.Fatal(err)
		}
		wake[i] = make(chan struct{}, 1)
		writers.Go(func() {
			defer served.Close()
			for range wake[i] {
				if _, err := served.Write(frame); err != nil {
					return
				}
			}
		})
	}
	_, took, cpu := got.measure(b, func() {
		for _, w := range wake {
			w <- struct{}{}
		}
	})
	for _, w := range wake {
		close(w)
	}
	return took, cpu
}

// counter counts the bytes that all readers got.
type counter struct{ bytes atomic.Int64 }

func (c *counter) dial(b *testing.B, addr string) net.Conn {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	go func() { // ends with the connection
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			c.bytes.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	return conn
}

// quiet waits until nothing more comes.
func (c *counter) quiet() {
	for before := int64(-1); before != c.bytes.Load() || before == 0; time.Sleep(200 * time.Millisecond) {
		before = c.bytes.Load()
	}
}

// measure makes b.N rounds, each ended by all readers having as many bytes as in
// the first, and returns wall clock and CPU.
func (c *counter) measure(b *testing.B, round func()) (bytes int64, took, cpu time.Duration) {
	before := c.bytes.Load()
	round()
	c.quiet()
	bytes = c.bytes.Load() - before
	b.ResetTimer()
	began, used := time.Now(), cpuTime(b)
	for range b.N {
		target := c.bytes.Load() + bytes
		round()
		for c.bytes.Load() < target-readers*4 { // numbers grow, sizes may differ by a digit
			time.Sleep(50 * time.Microsecond)
		}
	}
	return bytes, time.Since(began), cpuTime(b) - used
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
