package link

// The programs that every keeper has of its own. They are started like any
// other, by argv[0]; all names that begin with the prefix belong to the keeper.
const (
	ProgramPrefix = "sojourn:"
	// ProgramDial HOST:PORT connects its stdin and stdout with a loopback port of
	// the sandbox, and says "connected" on stderr when it has.
	ProgramDial = ProgramPrefix + "dial"
	// ProgramTar PATH... writes files and trees to stdout as a tar archive.
	ProgramTar = ProgramPrefix + "tar"
	// ProgramUntar DIR, or PATH TOP, reads a tar archive from stdin.
	ProgramUntar = ProgramPrefix + "untar"
	// ProgramFetch URL posts its stdin as JSON, through the proxy that its
	// environment names, and writes the body of the answer to stdout. It exits
	// with 0 for an answer of 2xx, and otherwise with 1 and a line on stderr.
	ProgramFetch = ProgramPrefix + "fetch"
)
