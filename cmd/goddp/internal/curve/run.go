package curve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Run is the content of a file of package progress: for each name, the points that have
// this name, in the order of the file.
type Run struct {
	Name   string
	Series map[string][]Point
}

// A Point is a number at a step and a time.
type Point struct{ Step, Time, Number float64 }

// maxLine is the longest line of a file, in bytes.
const maxLine = 1 << 20

// Read reads a run. A line with time 0 and no numbers, or with a lower time or step than the previous line, starts a
// resumed run, or a new run in the same file. From its step on, its numbers replace the earlier ones. A resumed run
// counts its time from 0, so Read adds the time that the run had reached at that step. Read skips empty lines, and
// incomplete last lines of killed processes, also before a resumed run. The error for another invalid line contains
// the line number.
func Read(path string) (*Run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	run := &Run{Name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), Series: map[string][]Point{}}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	var bad error // the error of the previous line
	n := 0
	var previous Point // the previous line, with its time in the file
	offset := 0.0      // time offset of a resumed run
	for lines.Scan() {
		n++
		text := bytes.TrimSpace(bytes.TrimPrefix(lines.Bytes(), []byte("\ufeff"))) // editors of some systems begin a file with this mark
		if len(text) == 0 {
			continue
		}
		var members map[string]any
		err := json.Unmarshal(text, &members)
		at := Point{Step: number(members["step"]), Time: number(members["time"])}
		delete(members, "step")
		delete(members, "time")
		isFirst := err == nil && len(members) == 0 && at.Time == 0 // the line begins a new or resumed run
		if bad != nil && !isFirst {
			return nil, bad
		}
		if bad = nil; err != nil {
			bad = fmt.Errorf("%s: line %d: %w", path, n, err)
			continue
		}
		if isFirst || at.Time < previous.Time || at.Step < previous.Step {
			offset = run.cut(at.Step, isFirst && at.Step > 0)
		}
		previous = at
		at.Time += offset
		for name, v := range members {
			at.Number = number(v)
			all := run.Series[name]
			if n := len(all); n > 0 && all[n-1].Step == at.Step {
				all = all[:n-1]
			}
			run.Series[name] = append(all, at)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: line %d: %w", path, n+1, err)
	}
	if len(run.Series) == 0 {
		return nil, fmt.Errorf("%s: contains no numbers", path)
	}
	return run, nil
}

// cut removes the points after step, and returns the latest time of the points that are left. If it is not known that
// the run is resumed, and there is no point before step, this is a new run: cut removes all points and returns 0.
func (r *Run) cut(step float64, isResumed bool) (latest float64) {
	for name, all := range r.Series {
		r.Series[name] = slices.DeleteFunc(all, func(p Point) bool { return p.Step > step })
		for _, p := range r.Series[name] {
			latest, isResumed = max(latest, p.Time), isResumed || p.Step < step
		}
	}
	if !isResumed {
		clear(r.Series)
		return 0
	}
	maps.DeleteFunc(r.Series, func(_ string, all []Point) bool { return len(all) == 0 })
	return latest
}

// number converts a JSON value, which is a number or a string such as "NaN".
func number(v any) float64 {
	switch v := v.(type) {
	case float64:
		return v
	case string:
		if x, err := strconv.ParseFloat(v, 64); err == nil {
			return x
		}
	}
	return math.NaN()
}
