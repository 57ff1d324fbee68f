package sandboxtest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
)

// The first arguments with which the suite starts the test binary again.
const (
	commandCrash         = "sandboxtest-crash"
	commandWarmCrash     = "sandboxtest-warm-crash"
	commandSnapshotCrash = "sandboxtest-snapshot-crash"
	commandInside        = "sandboxtest-inside"
)

// Main takes the process over when the suite has started it: as the keeper of a
// sandbox, as a program inside one, or as a server that is going to be killed. It
// returns when the process is the test itself.
func Main(open Open) {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case "keeper":
		os.Exit(keeper.Main(os.Args[2:]))
	case commandCrash:
		os.Exit(createForever(open, os.Args[2]))
	case commandWarmCrash:
		os.Exit(warmForever(open, os.Args[2]))
	case commandSnapshotCrash:
		os.Exit(saveForever(open, os.Args[2], os.Args[3]))
	case commandInside:
		os.Exit(inside(os.Args[2], os.Args[3:]))
	}
}

// inside does what the suite wants done by a program in a sandbox.
func inside(what string, args []string) int {
	switch what {
	case "connect":
		return insideConnect(args)
	case "interfaces":
		return insideInterfaces()
	case "knock":
		return insideKnock(args[0], args[1])
	case "deep":
		return insideDeep(args[0])
	case "image":
		return insideImage()
	case "fill":
		return insideFill(args[0])
	case "escape":
		return insideEscape(args[0])
	case "swap":
		return insideSwap(args[0], args[1])
	case "idle":
		time.Sleep(time.Hour)
		return 0
	case "nothing":
		return 0
	case "remember":
		return insideRemember(args[0])
	case "hog":
		return insideHog(args[0])
	case "spin":
		return insideSpin()
	case "write":
		return insideWrite(args[0], args[1])
	}
	fmt.Println("unknown command", what)
	return 2
}

// insideConnect tries addresses and prints those that answer.
func insideConnect(addresses []string) int {
	for _, a := range addresses {
		c, err := net.DialTimeout("tcp", a, 2*time.Second)
		if err == nil {
			fmt.Println(a)
			c.Close()
		}
	}
	return 0
}

func insideInterfaces() int {
	ifs, err := net.Interfaces()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for _, i := range ifs {
		fmt.Println(i.Name)
	}
	return 0
}

// insideKnock opens connections to the keeper's socket as an impostor would, and holds
// as many as it can until it is killed.
func insideKnock(n, socket string) int {
	count, err := strconv.Atoi(n)
	if err != nil {
		return 2
	}
	greetings := []string{"", "x", strings.Repeat("0", 64) + "\n", strings.Repeat("f", 100) + "\n"}
	var held []net.Conn
	for i := range count {
		c, err := net.Dial("unix", socket)
		if err != nil {
			fmt.Println("knock:", err)
			return 1
		}
		_, _ = c.Write([]byte(greetings[i%len(greetings)])) // may be closed already
		held = append(held, c)
	}
	fmt.Println("knocked", len(held))
	time.Sleep(time.Hour)
	return 0
}

// insideDeep makes a directory in a directory in a directory.
func insideDeep(n string) int {
	depth, err := strconv.Atoi(n)
	if err != nil {
		return 2
	}
	for range depth {
		if err := os.Mkdir("d", 0o755); err != nil {
			fmt.Println(err)
			return 1
		}
		if err := os.Chdir("d"); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return 0
}

// insideFill makes files in the working directory whose names are hard to handle.
func insideFill(n string) int {
	count, err := strconv.Atoi(n)
	if err != nil {
		return 2
	}
	names := []string{"new\nline", "-rf", "a b", "\xff\xfe", "..x", "...", `back\slash`, strings.Repeat("n", 255), "removed.1", "removed.2"}
	for i := range count {
		names = append(names, "f"+strconv.Itoa(i))
	}
	for _, name := range names {
		if err := os.WriteFile(name, nil, 0o000); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return 0
}

// insideHog uses some MiB of memory.
func insideHog(n string) int {
	count, err := strconv.Atoi(n)
	if err != nil {
		return 2
	}
	var held [][]byte
	for range count {
		held = append(held, bytes.Repeat([]byte{1}, 1<<20))
	}
	fmt.Println("held", len(held))
	return 0
}

// insideSpin uses one processor until it is killed.
func insideSpin() int {
	for n := uint64(1); n != 0; n += 2 { // stays odd
	}
	return 0
}

// insideWrite writes some MiB to a file, until it fails.
func insideWrite(path, n string) int {
	count, err := strconv.Atoi(n)
	if err != nil {
		return 2
	}
	f, err := os.Create(path)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer f.Close()
	block := bytes.Repeat([]byte("write"), 1<<20/5)
	for i := range count {
		if _, err := f.Write(block); err != nil {
			fmt.Println("after", i, "MiB:", err)
			return 1
		}
	}
	if err := f.Sync(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}
