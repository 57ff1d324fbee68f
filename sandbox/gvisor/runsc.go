package gvisor

import (
	"os"
	"path/filepath"
	"strings"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// command is the word that makes our executable behave as runsc.
const command = "runsc"

// IsReexec reports whether a process with these arguments is to be runsc, gVisor's
// runtime. Besides our own command line there are the names under which gVisor starts
// itself: runsc-sandbox, runsc-gofer and others, and a plain /proc/self/exe.
// Environment variables cannot tell, because the sandbox process gets none.
func IsReexec(args []string) bool {
	if len(args) == 0 {
		return false
	}
	return strings.HasPrefix(filepath.Base(args[0]), command) ||
		args[0] == "/proc/self/exe" ||
		len(args) > 1 && args[1] == command
}

// Main runs this process as runsc and does not return. It must be called first thing
// in main when IsReexec says so.
func Main() {
	if len(os.Args) > 1 && os.Args[1] == command {
		os.Args = append([]string{command}, os.Args[2:]...)
	}
	internal := "internal"
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Run):        "",
		new(cmd.Create):     "",
		new(cmd.Start):      "",
		new(cmd.Exec):       "",
		new(cmd.Kill):       "",
		new(cmd.Delete):     "",
		new(cmd.State):      "",
		new(cmd.List):       "",
		new(cmd.Wait):       "",
		new(cmd.PS):         "",
		new(cmd.Events):     "",
		new(cmd.Pause):      "",
		new(cmd.Resume):     "",
		new(cmd.Checkpoint): "",
		new(cmd.Restore):    "",

		new(sentrycmd.Boot):   internal,
		new(cmd.Gofer):        internal,
		new(sentrycmd.Umount): internal,
	}, nil)
}
