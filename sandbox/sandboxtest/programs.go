package sandboxtest

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sojourn-dev/sojourn/internal/keeper"
)

// Programs are the programs that the suite runs, for drivers that run them in this
// process.
var Programs = map[string]keeper.Program{
	"echo":  echo,
	"cat":   cat,
	"sleep": sleep,
}

func echo(_ context.Context, p keeper.Proc) int {
	fmt.Fprintln(p.Stdout, strings.Join(p.Args[1:], " "))
	return 0
}

func cat(_ context.Context, p keeper.Proc) int {
	for _, name := range p.Args[1:] {
		f, err := os.Open(p.MapPath(name))
		if err != nil {
			fmt.Fprintln(p.Stderr, err)
			return 1
		}
		_, err = io.Copy(p.Stdout, f)
		f.Close()
		if err != nil {
			return 1
		}
	}
	return 0
}

func sleep(ctx context.Context, _ keeper.Proc) int {
	<-ctx.Done()
	return 143
}
