package local

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/cgroup"
	"github.com/sojourn-dev/sojourn/sandbox/internal/quota"
)

// recordName is the file in a cell's directory that holds its record.
const recordName = "record.json"

// recordVersion is the version of the record's form.
const recordVersion = 1

// idBytes is how many bytes a cell's id is of, which it has in hexadecimal.
const idBytes = 16

// warmPrefix begins the directories of cells that were made for no session yet; the
// id of the cell follows. No session's name begins with a dot.
const warmPrefix = ".warm-"

// Cell is one sandbox as it is on disk.
type Cell struct {
	Session string // "" in a cell that belongs to no session yet
	Epoch   int64
	// ID is 32 hexadecimal digits that no other sandbox on this machine has.
	ID string
	// Dir holds all of the cell; nobody but the server's user can enter it.
	Dir string
	// Record is the zero value in a cell that was never begun properly.
	Record Record

	root  string        // the directory that the cell's is in
	group *cgroup.Group // nil when there is none
}

// Record is what a cell's directory, and its handle, say about it.
type Record struct {
	Version int     `json:"version"`
	ID      string  `json:"id"`
	Token   string  `json:"token"`
	Process Process `json:"process"` // zero until there is one
	Ready   bool    `json:"ready"`   // Launch has returned: the sandbox is whole
	// Limits are what the sandbox was made with.
	Limits sandbox.Limits `json:"limits,omitzero"`
	// Disk is how the files are bounded; "" when they are not.
	Disk quota.Method `json:"disk,omitempty"`
	// Kernel is the id of the cell in which the processes first ran, if they came
	// from a snapshot: the sandbox's own kernel knows them by it.
	Kernel string `json:"kernel,omitempty"`
	// Image is the digest of the image that the sandbox runs on; "" is none.
	Image string `json:"image,omitempty"`
	// Root is the driver's word for how the sandbox can change its root directory; ""
	// where that is the same for all.
	Root string `json:"root,omitempty"`
	// Bound says whose a cell is that was made for no session; nil in all others.
	Bound *Bound `json:"bound,omitempty"`
	// KeeperEpoch is the epoch that the keeper was started with. In a cell that was
	// resumed it is that of the first one.
	KeeperEpoch int64 `json:"keeperEpoch"`
	// Prepared says that there are directories and nothing else, and that a Create
	// with a snapshot goes on from here.
	Prepared bool `json:"prepared,omitempty"`
	// Saving says that the processes may stand still, because a snapshot began and
	// nobody saw its end.
	Saving bool `json:"saving,omitempty"`
}

// Bound names the session and the epoch that a warm cell was given to.
type Bound struct {
	Session string `json:"session"`
	Epoch   int64  `json:"epoch"`
}

// Workspace is the host directory behind sandbox.WorkspacePath.
func (c *Cell) Workspace() string { return filepath.Join(c.files(), "workspace") }

// Home is the host directory behind sandbox.HomePath.
func (c *Cell) Home() string { return filepath.Join(c.files(), "home") }

// files is the directory with all that the sandbox can write to disk.
func (c *Cell) files() string {
	if c.Record.Disk != "" {
		return c.disk()
	}
	return c.Dir
}

// Changes is a directory for what the sandbox changes elsewhere, which counts as its files.
func (c *Cell) Changes() string {
	if c.Record.Disk != "" {
		return filepath.Join(c.disk(), "changes")
	}
	return filepath.Join(c.Private(), "changes")
}

// KernelID is the id by which a kernel of the sandbox's own knows it.
func (c *Cell) KernelID() string { return cmp.Or(c.Record.Kernel, c.ID) }

// Run is the host directory behind sandbox.SocketDir.
func (c *Cell) Run() string { return filepath.Join(c.Dir, "run") }

// Private is a directory for the driver's own files, which the sandbox does not see.
func (c *Cell) Private() string { return filepath.Join(c.Dir, "private") }

func (c *Cell) dirs() sandbox.Dirs {
	return sandbox.Dirs{Workspace: c.Workspace(), Home: c.Home(), Sockets: c.Run()}
}

// KeeperArgs is the command that runs as process 1 in the sandbox.
func (c *Cell) KeeperArgs() []string {
	return []string{
		sandbox.KeeperPath, "keeper",
		"--socket", sandbox.SocketDir + "/" + sandbox.SocketName,
		"--epoch", strconv.FormatInt(c.Record.KeeperEpoch, 10),
		"--processes", strconv.Itoa(c.Record.Limits.Processes),
	}
}

// KeeperEnv is the whole environment of process 1 in the sandbox, with the variables of
// its image if it has one. They replace our PATH and language, and nothing else of ours.
func (c *Cell) KeeperEnv(image ...string) []string {
	return mergeEnv([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + sandbox.HomePath,
		"TERM=dumb",
		"LANG=C.UTF-8",
		sandbox.TokenVariable + "=" + c.Record.Token,
	}, image)
}

// name is what the cell is called in its driver's directory and in errors.
func (c *Cell) name() string {
	if c.Session == "" {
		return warmPrefix + c.ID
	}
	return c.Session + "-" + strconv.FormatInt(c.Epoch, 10)
}

// parseName is the inverse of name. The last hyphen separates, because an epoch has
// none.
func parseName(name string) (session string, epoch int64, ok bool) {
	session, digits, found := cutLast(name, "-")
	if !found {
		return "", 0, false
	}
	epoch, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || strconv.FormatInt(epoch, 10) != digits || sandbox.ValidateSession(session, epoch) != nil {
		return "", 0, false
	}
	return session, epoch, true
}

// newCell describes a cell below the directory root, on disk or not.
func newCell(root, session string, epoch int64) *Cell {
	c := &Cell{Session: session, Epoch: epoch, root: root}
	c.find()
	return c
}

// newWarmCell describes a cell that belongs to no session yet.
func newWarmCell(root string) *Cell {
	b := make([]byte, idBytes)
	rand.Read(b) // never fails
	return warmCell(root, hex.EncodeToString(b))
}

func warmCell(root, id string) *Cell {
	return &Cell{ID: id, Dir: filepath.Join(root, warmPrefix+id), root: root}
}

// find sets the id and the directory of a session's cell, which are those of a warm
// cell if it was given one. They can change while nobody holds the cell's turn.
func (c *Cell) find() {
	c.Record = Record{}
	c.Dir = c.place()
	sum := sha256.Sum256([]byte(strings.Join([]string{c.root, c.Session, strconv.FormatInt(c.Epoch, 10)}, "\x00")))
	c.ID = hex.EncodeToString(sum[:idBytes])
	target, err := os.Readlink(c.place())
	if err != nil {
		return
	}
	if id, ok := parseWarm(target); ok {
		c.ID, c.Dir = id, filepath.Join(c.root, target)
	}
}

// place is where a session's cell is looked for: its directory, or a link to that of a
// warm cell.
func (c *Cell) place() string { return filepath.Join(c.root, c.name()) }

// linked reports whether a session's cell was a warm one.
func (c *Cell) linked() bool { return c.Session != "" && c.Dir != c.place() }

// parseWarm returns the id in the name of a warm cell's directory.
func parseWarm(name string) (id string, ok bool) {
	id, ok = strings.CutPrefix(name, warmPrefix)
	b, err := hex.DecodeString(id)
	return id, ok && err == nil && len(b) == idBytes && hex.EncodeToString(b) == id
}

// bind gives a warm cell to a session, in one step: a link in the session's place. Its
// directory stays where it is, because processes, mounts and files of a runtime know it
// by its path. Before the step the cell is nobody's, whatever its record says.
func (c *Cell) bind(session string, epoch int64) (*Cell, error) {
	b := *c
	b.Session, b.Epoch = session, epoch
	b.Record.Bound = &Bound{Session: session, Epoch: epoch}
	if err := b.save(); err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Base(b.Dir), b.place()); err != nil {
		return nil, fmt.Errorf("bind warm sandbox: %w", err)
	}
	return &b, nil
}

// begin makes the directory and the record of a cell, which begins with r; from then on it
// is listed.
func (c *Cell) begin(r Record) error {
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return fmt.Errorf("begin sandbox: %w", err)
	}
	r.Version, r.ID = recordVersion, c.ID
	c.Record = r
	return c.save()
}

// furnish makes the directories that the sandbox and its driver need.
func (c *Cell) furnish() error {
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{c.Workspace(), 0o755}, {c.Home(), 0o755}, {c.Run(), 0o700}, {c.Private(), 0o700}} {
		if err := os.Mkdir(d.path, d.mode); err != nil {
			return fmt.Errorf("begin sandbox: %w", err)
		}
		if err := os.Chmod(d.path, d.mode); err != nil { // whatever the umask
			return fmt.Errorf("begin sandbox: %w", err)
		}
	}
	return nil
}

// save writes the record in one step.
func (c *Cell) save() error {
	path := filepath.Join(c.Dir, recordName)
	if err := os.WriteFile(path+".new", c.data(), 0o600); err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	return nil
}

// load reads the record. A missing or broken record leaves it zero: then the cell
// was never finished. An error means that it cannot be told what the record says.
func (c *Cell) load() error {
	r, err := readRecord(c.Dir)
	if unreadable(err) {
		return fmt.Errorf("read sandbox record: %w", err)
	}
	if err == nil && r.ID == c.ID && (!c.linked() || r.isOf(c)) {
		c.Record = r
	}
	return nil
}

// isOf reports whether the record says that a warm cell was given to the session of c:
// no second link can make it another's.
func (r *Record) isOf(c *Cell) bool {
	return r.Bound != nil && *r.Bound == Bound{Session: c.Session, Epoch: c.Epoch}
}

// errBroken reports a record that is not one of ours.
var errBroken = errors.New("broken record")

// unreadable reports whether an error of readRecord is none of the record's own: it may
// well be there, and be read the next time.
func unreadable(err error) bool {
	return err != nil && !errors.Is(err, errBroken) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR)
}

// readRecord returns the record in a cell's directory.
func readRecord(dir string) (Record, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", errBroken, err)
	}
	if r.Version != recordVersion {
		return Record{}, fmt.Errorf("%w: of version %d", errBroken, r.Version)
	}
	return r, nil
}

// Begun records the first process of the cell while it does nothing yet, so that it is
// found even if the server dies before Launch returns.
func (c *Cell) Begun(p Process) error {
	c.Record.Process = p
	return c.save()
}

// data is the record in the form in which handles carry it.
func (c *Cell) data() json.RawMessage {
	b, err := json.Marshal(c.Record)
	if err != nil {
		panic(err) // strings and numbers
	}
	return b
}

func (c *Cell) handle(driver string) sandbox.Handle {
	h := sandbox.Handle{Driver: driver, Session: c.Session, Epoch: c.Epoch}
	if c.Record.ID != "" {
		h.Data = c.data()
	}
	return h
}

// remove removes the cell's directory, its record last, and then its link.
func (c *Cell) remove() error {
	entries, err := os.ReadDir(c.Dir)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	for _, e := range entries {
		if e.Name() == recordName {
			continue
		}
		path := filepath.Join(c.Dir, e.Name())
		if !e.IsDir() {
			err = unix.Unlink(path)
		} else {
			err = RemoveTree(path)
		}
		if err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("remove sandbox: %w", err)
		}
	}
	if err := RemoveTree(c.Dir); err != nil {
		return err
	}
	if !c.linked() {
		return nil
	}
	if err := os.Remove(c.place()); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	return nil
}
