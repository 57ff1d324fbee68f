package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// maxStats bounds what an engine says about the use of one sandbox.
const maxStats = 1 << 20

// Usage asks the engine what a sandbox has used.
func (l *launcher) Usage(ctx context.Context, c *local.Cell) (sandbox.Usage, error) {
	r, err := l.engine.ContainerStats(ctx, nameIn(c), client.ContainerStatsOptions{})
	if err != nil {
		return sandbox.Usage{}, fmt.Errorf("ask engine: %w", err)
	}
	defer r.Body.Close()
	var s container.StatsResponse
	if err := json.NewDecoder(io.LimitReader(r.Body, maxStats)).Decode(&s); err != nil {
		return sandbox.Usage{}, fmt.Errorf("read what the engine says: %w", err)
	}
	u, n := usageOf(s), readCounters(c)
	u.MemoryKills, u.ProcessDenied = n.memoryKills, n.processDenied
	u.MemoryPeakBytes = max(u.MemoryPeakBytes, n.memoryPeakBytes)
	u.CPUThrottled = max(u.CPUThrottled, n.cpuThrottled)
	return u, nil
}

// usageOf leaves out the page cache that can be dropped, as engines' own tools do.
func usageOf(s container.StatsResponse) sandbox.Usage {
	memory := s.MemoryStats.Usage
	for _, name := range []string{"total_inactive_file", "inactive_file"} { // cgroup 1, 2
		if cache, ok := s.MemoryStats.Stats[name]; ok && cache <= memory {
			memory -= cache
			break
		}
	}
	return sandbox.Usage{
		MemoryBytes:     int64(memory),
		MemoryPeakBytes: int64(max(s.MemoryStats.MaxUsage, memory)),
		CPU:             time.Duration(s.CPUStats.CPUUsage.TotalUsage),
		CPUThrottled:    time.Duration(s.CPUStats.ThrottlingData.ThrottledTime),
		Processes:       int(s.PidsStats.Current),
	}
}
