package sandboxtest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// memory is what the program "remember" knows about itself. All of it must survive a
// snapshot.
type memory struct {
	PID       int
	Asked     int    // how often it was asked before
	Sum       string // of a block of memory, computed when it was filled
	Intact    bool   // it still has that sum
	Cwd       string
	Variable  string
	Offset    int64  // in a file that is open for reading
	Next      string // what is read there
	Appended  int64  // bytes in a file that is open for appending
	Temporary string // content of a file in /tmp
	Overlay   string // content of a file in the root directory
	Unlinked  string // content of a file in /tmp that has no name any more
	Child     string // what a child says over a pipe
	Loopback  string // what the program says to itself over a TCP connection
}

// remembering holds what the answers are made of.
type remembering struct {
	asked      int
	block      []byte
	sum        [sha256.Size]byte
	read       *os.File
	append     *os.File
	unlinked   *os.File
	childIn    io.Writer
	childOut   *bufio.Reader
	near, away net.Conn
}

// insideRemember fills memory of a number of MiB with noise, opens files, starts a child,
// and answers each line of its input with what it still knows.
func insideRemember(mib string) int {
	r, err := remember(mib)
	if err != nil {
		fmt.Println("remember:", err)
		return 1
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		m, err := r.answer()
		if err != nil {
			fmt.Println("remember:", err)
			return 1
		}
		line, err := json.Marshal(m)
		if err != nil {
			return 1
		}
		fmt.Println(string(line))
	}
	return 0
}

func remember(mib string) (*remembering, error) {
	n, err := strconv.Atoi(mib)
	if err != nil {
		return nil, err
	}
	r := &remembering{block: make([]byte, n<<20)}
	rand.Read(r.block)
	r.sum = sha256.Sum256(r.block)
	if err := r.open(); err != nil {
		return nil, err
	}
	child := exec.Command("cat") // keeps the pipe of its input and that of its output
	in, err := child.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.childIn, r.childOut = in, bufio.NewReader(out)
	if err := child.Start(); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	if r.near, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		return nil, err
	}
	r.away, err = ln.Accept()
	return r, err
}

// open makes the files: one is read by line and one is written to, both in the
// workspace; others are in places of the sandbox alone.
func (r *remembering) open() (err error) {
	numbers := new(bytes.Buffer)
	for i := range 1000 {
		fmt.Fprintf(numbers, "%07d\n", i)
	}
	for path, text := range map[string][]byte{
		"numbers": numbers.Bytes(), "/tmp/kept": []byte("in /tmp"), "/var/lib/kept": []byte("in the root"),
	} {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	if r.read, err = os.Open("numbers"); err != nil {
		return err
	}
	if r.append, err = os.OpenFile("log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	if r.unlinked, err = os.CreateTemp("/tmp", "unlinked-"); err != nil {
		return err
	}
	if _, err := r.unlinked.WriteString("no name"); err != nil {
		return err
	}
	return os.Remove(r.unlinked.Name())
}

// answer uses everything once.
func (r *remembering) answer() (m memory, err error) {
	m = memory{PID: os.Getpid(), Asked: r.asked, Sum: fmt.Sprintf("%x", r.sum), Variable: os.Getenv("REMEMBER")}
	r.asked++
	m.Intact = sha256.Sum256(r.block) == r.sum
	if m.Cwd, err = os.Getwd(); err != nil {
		return m, err
	}
	if m.Offset, err = r.read.Seek(0, io.SeekCurrent); err != nil {
		return m, err
	}
	next := make([]byte, 8)
	if _, err = io.ReadFull(r.read, next); err != nil {
		return m, err
	}
	m.Next = string(next)
	if _, err = r.append.WriteString("asked\n"); err != nil {
		return m, err
	}
	info, err := r.append.Stat()
	if err != nil {
		return m, err
	}
	m.Appended = info.Size()
	for path, to := range map[string]*string{"/tmp/kept": &m.Temporary, "/var/lib/kept": &m.Overlay} {
		b, err := os.ReadFile(path)
		if err != nil {
			return m, err
		}
		*to = string(b)
	}
	b := make([]byte, 64)
	n, err := r.unlinked.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return m, err
	}
	m.Unlinked = string(b[:n])
	fmt.Fprintln(r.childIn, "asked", m.Asked)
	if m.Child, err = r.childOut.ReadString('\n'); err != nil {
		return m, err
	}
	if _, err = fmt.Fprintln(r.near, "asked", m.Asked); err == nil {
		m.Loopback, err = bufio.NewReader(r.away).ReadString('\n')
	}
	if err != nil { // a connection may be cut, and says so
		m.Loopback, err = "cut: "+err.Error(), nil
	}
	return m, err
}

// rememberIn is the working directory of the program.
const rememberIn = sandbox.WorkspacePath + "/deep/er"
