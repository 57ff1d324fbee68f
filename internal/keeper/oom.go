package keeper

import (
	"os"
	"strconv"
	"strings"
)

const (
	// programsScore is how much sooner than the keeper its programs are ended when
	// memory runs out, in thousandths of what there is. Without it many small programs
	// would have the keeper, as the largest of all, ended in their stead, and the
	// sandbox with it.
	programsScore = 500
	// highestScore is the most that the kernel knows.
	highestScore = 1000
)

// exposedScore is the score of what the keeper starts, as the kernel reads it, or "" when
// that is what it inherits. It is given to a program once it runs, because a keeper that
// took it for the time of a fork would be the one to be ended in that time: when memory
// is scarce a fork takes long. What a program starts in its first moments, before it has
// its score, has the keeper's.
func exposedScore() string {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return ""
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || own >= highestScore {
		return ""
	}
	return strconv.Itoa(min(own+programsScore, highestScore))
}

// expose gives a score to a program that has been started. Where that cannot be done,
// as to one with more rights than the keeper's, it has the keeper's.
func expose(pid int, score string) {
	if score == "" {
		return
	}
	f, err := os.OpenFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", os.O_WRONLY, 0)
	if err != nil {
		return
	}
	_, _ = f.WriteString(score)
	_ = f.Close() // as above
}
