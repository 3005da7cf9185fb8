package page

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/telemetry"
)

// runFile is the name of the file of a run in its folder.
const runFile = "run.json"

// saved is a run in its file.
type saved struct {
	Format     string // savedFormat
	Info       Info
	Status     string
	Ended      time.Time
	WorldSize  int
	Restarts   int
	Failure    string
	Culprits   []int
	Checkpoint *Saved
	Workers    []Worker
	Events     []Event
	Lines      map[int][]Line
	Points     int
	Series     []savedSeries
}

const savedFormat = "goddp run 1"

// savedSeries are the points of a number of a rank.
type savedSeries struct {
	Kind    telemetry.Kind
	Name    string
	Rank    int
	Width   uint32
	Latest  uint64 // the bits of a float64, which may be NaN
	Buckets []byte // bucketSize bytes for each: the fields of bucket, little endian
}

// bucketSize is the size of a bucket in a file.
const bucketSize = 2*8 + 3*4 + 2*4

func appendBucket(b []byte, k *bucket) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(k.first))
	b = binary.LittleEndian.AppendUint64(b, uint64(k.last))
	for _, v := range []uint32{math.Float32bits(k.min), math.Float32bits(k.max), math.Float32bits(k.mean), k.points, k.others} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func readBucket(b []byte) bucket {
	step := func(i int) int64 { return int64(min(binary.LittleEndian.Uint64(b[8*i:]), telemetry.MaxStep)) }
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(b[16+4*i:]) }
	return bucket{
		first: step(0), last: step(1),
		min: math.Float32frombits(word(0)), max: math.Float32frombits(word(1)), mean: math.Float32frombits(word(2)), points: word(3), others: word(4),
	}
}

// Save writes the run to a folder, in place of what the folder held of it.
func (r *Run) Save(dir string) error {
	text, err := json.Marshal(r.snapshot())
	if err == nil {
		err = files.WriteBytes(filepath.Join(dir, runFile), 0o600, text) // it holds the workers' output
	}
	if err != nil {
		return fmt.Errorf("page: saving the run: %w", err)
	}
	return nil
}

func (r *Run) snapshot() *saved {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &saved{
		Format: savedFormat, Info: r.info, Status: r.status, Ended: r.ended, WorldSize: r.worldSize, Restarts: r.restarts, Failure: r.failure,
		Culprits: r.culprits, Checkpoint: r.checkpoint, Events: append([]Event{}, r.events...), Lines: map[int][]Line{}, Points: r.points,
	}
	for _, n := range r.sortedRanks() {
		if w, ok := r.workers[n]; ok {
			s.Workers = append(s.Workers, w)
		}
		if k := r.ranks[n]; k != nil && len(k.lines) > 0 {
			s.Lines[n] = k.last()
		}
	}
	for k, of := range r.series {
		b := make([]byte, 0, bucketSize*len(of.buckets))
		for i := range of.buckets {
			b = appendBucket(b, &of.buckets[i])
		}
		s.Series = append(s.Series, savedSeries{k.kind, k.name, k.rank, of.width, math.Float64bits(of.latest), b})
	}
	return s
}

// ErrNoRun is the error of a folder that holds no run.
var ErrNoRun = errors.New("the folder holds no run")

// Load reads the run of a folder into r, which must be new. If the folder holds none, the error wraps [ErrNoRun].
func (r *Run) Load(dir string) error {
	var s saved
	text, err := files.Read(filepath.Join(dir, runFile), maxFile)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = ErrNoRun
	case err == nil && s.Format != savedFormat:
		err = fmt.Errorf("format %q, want %q", s.Format, savedFormat)
	}
	if err != nil {
		return fmt.Errorf("page: %s: %w", dir, err)
	}
	r.change(func() { r.restore(&s) })
	return nil
}

// maxFile bounds the size of a run's file.
const maxFile = 256 << 20

// restore sets the fields of r from a file, which anybody may have written.
func (r *Run) restore(s *saved) {
	r.info, r.status, r.ended, r.worldSize, r.restarts, r.failure, r.culprits, r.checkpoint = s.Info, s.Status, s.Ended, s.WorldSize, s.Restarts, s.Failure, s.Culprits, s.Checkpoint
	r.events, r.points = s.Events[max(0, len(s.Events)-maxEvents):], min(max(s.Points, leastPoint), mostPoints)
	for _, w := range s.Workers {
		if w.Rank >= 0 && w.Rank < maxRanks {
			r.workers[w.Rank] = w
		}
	}
	for n, lines := range s.Lines {
		if k := r.rank(n); k != nil {
			k.lines = lines[max(0, len(lines)-maxLines):]
		}
	}
	for _, of := range s.Series {
		k := r.rank(of.Rank)
		n := len(of.Buckets) / bucketSize
		if k == nil || n == 0 || n > mostPoints {
			continue
		}
		into := &series{width: max(of.Width, 1), latest: math.Float64frombits(of.Latest)}
		for i := range n {
			into.buckets = append(into.buckets, readBucket(of.Buckets[bucketSize*i:]))
		}
		into.at = into.buckets[n-1].last
		k.step = max(k.step, into.at)
		r.series[key{of.Kind, of.Name, of.Rank}] = into
		switch {
		case of.Kind == telemetry.Values:
			r.names[of.Name] = true
		case of.Name != stepTime && of.Name != workTime:
			r.parts[of.Name] = true
		}
	}
}

// GoOn makes a loaded run that of a job that begins now. The curves and the events stay.
func (r *Run) GoOn() {
	r.change(func() {
		r.status, r.ended, r.failure, r.culprits = Running, time.Time{}, "", nil
		clear(r.workers)
	})
}

// Rename sets the id of a loaded run, by which the page distinguishes it from others.
func (r *Run) Rename(id string) { r.change(func() { r.info.ID = id }) }

// Unfinished says that nobody knows how a loaded run ended, unless its file says so.
func (r *Run) Unfinished() {
	r.change(func() {
		if r.status == Running {
			r.status = "unfinished"
			for n, w := range r.workers {
				if w.State == Running {
					w.State = "unknown"
					r.workers[n] = w
				}
			}
		}
	})
}
