package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
)

// rebuiltVariable stops a rebuilt executable from building itself again.
const rebuiltVariable = "SOJOURN_REBUILT"

// dynamic reports whether this executable needs a dynamic linker. gVisor starts
// it again in places where there is none.
func dynamic() bool {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return true
		}
	}
	return false
}

// becomeStatic replaces this process by a statically linked build of the same
// source when it is not one: "go run" links dynamically on machines that have a
// C compiler. It returns when there is nothing to do or no way to do it; what
// does not work then is said where it does not work.
func becomeStatic(ctx context.Context, io stdio) error {
	if !dynamic() || os.Getenv(rebuiltVariable) != "" {
		return nil
	}
	root, ok := sourceRoot(ctx)
	if !ok {
		return nil
	}
	exe := filepath.Join(root, "bin", "sojourn")
	fmt.Fprintf(io.err, "This build is linked dynamically, which sandboxes cannot use. Building a static one as bin/sojourn\n"+
		"(the first time this compiles gVisor: about two minutes on two cores; later seconds) ...\n")
	build := exec.CommandContext(ctx, "go", "build", "-o", exe, "./cmd/sojourn")
	build.Dir, build.Stdout, build.Stderr = root, io.err, io.err
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := build.Run(); err != nil {
		return fmt.Errorf("build a static executable: %w", err)
	}
	return syscall.Exec(exe, append([]string{exe}, os.Args[1:]...), append(os.Environ(), rebuiltVariable+"=1"))
}

// sourceRoot finds the source that this executable was built from: the module
// that the go command works on here, if it is ours.
func sourceRoot(ctx context.Context) (string, bool) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", false
	}
	mod := strings.TrimSpace(string(out))
	text, err := os.ReadFile(mod)
	if err != nil || !bytes.HasPrefix(text, []byte("module "+info.Main.Path+"\n")) {
		return "", false
	}
	return filepath.Dir(mod), true
}
