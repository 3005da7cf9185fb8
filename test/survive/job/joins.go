package job

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// stay is a worker's time in an epoch: its first and its last committed step, in Unix microseconds.
type stay struct{ epoch, size, first, last int }

// joins returns how long replacements took from their start to their first step, and for how long the members then
// committed none.
func joins(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil {
		return "", err
	}
	var joined, paused []time.Duration
	for _, name := range files {
		start, stays, err := readStays(name)
		if err != nil {
			return "", err
		}
		if len(stays) > 0 && stays[0].epoch > 1 {
			joined = append(joined, time.Duration(stays[0].first-start)*time.Microsecond)
		}
		for i := 1; i < len(stays); i++ {
			if a, b := stays[i-1], stays[i]; b.epoch == a.epoch+1 && b.size > a.size {
				paused = append(paused, time.Duration(b.first-a.last)*time.Microsecond)
			}
		}
	}
	return fmt.Sprintf("replacements, from their start to their first step: %s; the others' pause: %s", spread(joined), spread(paused)), nil
}

// readStays reads a worker's log. It leaves out epochs in which the worker committed no step.
func readStays(name string) (start int, all []stay, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()
	var now stay
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var rank, step, at int
		var loss string
		if _, err := fmt.Sscanf(lines.Text(), "epoch %d rank %d of %d", &now.epoch, &rank, &now.size); err == nil {
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "start %d", &start); err == nil {
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "commit %d %s %d", &step, &loss, &at); err != nil {
			continue
		}
		if n := len(all); n > 0 && all[n-1].epoch == now.epoch {
			all[n-1].last = at
		} else {
			all = append(all, stay{now.epoch, now.size, at, at})
		}
	}
	return start, all, nil
}

// spread returns the number, the median and the maximum of some times.
func spread(times []time.Duration) string {
	if len(times) == 0 {
		return "none"
	}
	slices.Sort(times)
	return fmt.Sprintf("%d, median %v, worst %v", len(times), times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
}
