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
)
