package keeper

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// tokenEnv carries the secret that proves to the driver who dials.
const tokenEnv = "SOJOURN_KEEPER_TOKEN"

// tokenBytes is the secret's length; on the wire it is twice as many hex digits.
const tokenBytes = 32

// The pauses between attempts to reach the driver.
const (
	minRedial = 20 * time.Millisecond
	maxRedial = 200 * time.Millisecond
)

// stopGrace is what processes get when the keeper itself is told to stop.
const stopGrace = 5 * time.Second

// Main is the keeper command: it dials the driver's socket for ever and serves
// each connection. Its processes run on while there is none. It returns the
// exit code.
func Main(args []string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	flags := flag.NewFlagSet("keeper", flag.ContinueOnError)
	socket := flags.String("socket", "", "Unix socket of the driver")
	epoch := flags.Int64("epoch", 0, "oldest epoch accepted")
	limit := flags.Int("processes", 0, "most processes and threads in the sandbox, those of the keeper among them; 0 is no limit")
	var places Places
	flags.Var(&places, "place", "INSIDE=HOST: a directory of the sandbox that lies elsewhere; repeatable")
	var given assignments
	flags.Var(&given, "env", "NAME=VALUE for every process whose environment does not name it; repeatable")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	token, wiped, err := takeToken()
	if err != nil {
		log.Error("read keeper token", "err", err)
		return 2
	}
	if *socket == "" {
		log.Error("no --socket given")
		return 2
	}
	// Processes of the sandbox may run as the same user; they must neither
	// trace the keeper nor read its memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		log.Warn("hide keeper from other processes", "err", err)
	}
	if !wiped {
		log.Warn("the keeper's token is still in the memory of its first environment")
	}
	cfg := Config{Epoch: *epoch, Init: os.Getpid() == 1, Processes: *limit, Log: log}
	if len(places) > 0 {
		// There is no process namespace either, so orphans come to the keeper only
		// when it asks for them.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			log.Error("become the parent of orphans", "err", err)
			return 1
		}
		cfg.Init, cfg.Places, cfg.Env = true, places, given
	}
	limitThreads(cfg.Processes)
	k := New(cfg)
	if cfg, ok := systemWay(*socket); ok && os.Getpid() == 1 {
		w := openWay(cfg, log)
		defer w.close()
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	defer context.AfterFunc(ctx, func() { k.shutdown(stopGrace) })() // not when Main ends by itself
	k.dialLoop(k.over, func(ctx context.Context) (link.Transport, error) { return dialDriver(ctx, *socket, token) })
	if err := k.Close(); err != nil {
		log.Error("close keeper", "err", err)
		return 1
	}
	return 0
}

// catchIgnored makes this process catch the signals that whoever started it ignores: a
// server under nohup hangups, one in the background of a script interrupts. What is
// ignored is inherited by every program that is started, what is caught is not.
var catchIgnored = sync.OnceFunc(func() {
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
})

// takeToken reads the secret and removes it from the environment. It reports
// whether the copy that /proc/PID/environ shows is gone as well.
func takeToken() (token string, wiped bool, err error) {
	environ := os.Environ()
	token = os.Getenv(tokenEnv)
	if err := os.Unsetenv(tokenEnv); err != nil {
		return "", false, fmt.Errorf("unset %s: %w", tokenEnv, err)
	}
	wiped = wipe(tokenEnv, environ)
	if raw, err := hex.DecodeString(token); err != nil || len(raw) != tokenBytes {
		return "", wiped, fmt.Errorf("%s must have %d hex digits", tokenEnv, 2*tokenBytes)
	}
	return token, wiped, nil
}

// wipe clears the value of a variable in the memory that the kernel filled at
// the start of the program. There the environment follows the arguments, and
// the runtime's argument strings lie in that memory, so it is found behind the
// last one. Every byte is compared with what it must be before the next is
// looked at; the first that differs ends it.
func wipe(name string, environ []string) bool {
	last := os.Args[len(os.Args)-1]
	if last == "" {
		return false
	}
	base := unsafe.Pointer(unsafe.StringData(last))
	at := func(i int) *byte { return (*byte)(unsafe.Add(base, i)) }
	off := len(last)
	if *at(off) != 0 {
		return false
	}
	off++
	for _, kv := range environ {
		for i := range len(kv) {
			if *at(off + i) != kv[i] {
				return false
			}
		}
		if *at(off + len(kv)) != 0 {
			return false
		}
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			clear(unsafe.Slice(at(off+len(kv)-len(value)), len(value)))
			return true
		}
		off += len(kv) + 1
	}
	return false
}

// dialDriver opens one connection and proves who dials.
func dialDriver(ctx context.Context, socket, token string) (link.Transport, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(nc, token+"\n"); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return link.Framed(nc), nil
}

// dialLoop serves one connection after another until ctx ends.
func (k *Keeper) dialLoop(ctx context.Context, dial func(context.Context) (link.Transport, error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause, silent := minRedial, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		t, err := dial(ctx)
		if err == nil {
			silent = false
			err = k.Serve(ctx, t)
		}
		if err != nil && ctx.Err() == nil && !silent {
			k.log.Warn("link to the driver", "err", err)
			silent = true // once is enough until it works again
		}
		if time.Since(began) > maxRedial {
			pause = minRedial // that was a working connection
		}
		timer.Reset(pause)
		pause = min(2*pause, maxRedial)
	}
}
