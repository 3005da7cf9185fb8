package launcher

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/flight/analyze"
)

// lookup finds variables in an environment; the last of a name counts.
func lookup(env []string) func(string) (string, bool) {
	return func(name string) (value string, ok bool) {
		for _, kv := range env {
			if v, found := strings.CutPrefix(kv, name+"="); found {
				value, ok = v, true
			}
		}
		return value, ok
	}
}

// ownDirVar names, beside flight.DirVar, the folder for records where it is a launcher
// that chose it: for its own workers, and no other job that one of them starts.
const ownDirVar = "GODDP_LAUNCHER_FLIGHT_DIR"

// recordSettings reads the flight recorder's settings as the user made them.
func recordSettings(env []string) (flight.Settings, error) {
	find := lookup(env)
	return flight.ReadSettings(func(name string) (value string, ok bool) {
		value, ok = find(name)
		if name == flight.DirVar {
			ours, _ := find(ownDirVar)
			ok = ok && value != ours
		}
		return value, ok
	})
}

// firstExtraFD is the number by which a process knows its first extra file.
const firstExtraFD = 3

// giveRecorder makes the memory for a worker's flight recorder. A worker that
// has no use for it does not notice; one that gets none records elsewhere.
func (s *spawner) giveRecorder(p *process) {
	if s.records == 0 {
		return
	}
	var err error
	if p.memory, err = flight.NewShared(s.records); err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			s.console.logf("rank %d will leave no record if it is killed: %v", p.Rank, err)
		}
		return
	}
}

// recorderEnv tells a worker about its recorder.
func (s *spawner) recorderEnv(p *process) []string {
	fd := "" // hides that of a golaunch around this one
	if p.memory != nil {
		fd = fmt.Sprint(firstExtraFD)
	}
	ours := s.dumps
	if s.chosen {
		ours = ""
	}
	return []string{flight.FDVar + "=" + fd, flight.DirVar + "=" + s.dumps, ownDirVar + "=" + ours}
}

func (p *process) closeRecord() {
	if p.memory != nil {
		p.memory.Close()
		p.memory = nil
	}
}

// flightFolder is where an attempt's records are, in its folder.
const flightFolder = "flight"

// dumpDir is where the attempt's records are written, by the workers and by
// this process: where the user wants them, else beside the workers' logs.
func (a *agent) dumpDir() string {
	if a.records.Chosen() != "" {
		dir := a.records.Folder(a.jobID)
		if abs, err := filepath.Abs(dir); err == nil {
			return abs
		}
		return dir
	}
	return filepath.Join(a.attemptDir(), flightFolder)
}

// takeRecords reads what the workers, dead or alive, have recorded: as they are
// when the attempt fails, before they are stopped. A second call does nothing.
func (a *agent) takeRecords() {
	if a.recorded {
		return
	}
	a.recorded = true
	for _, p := range a.procs {
		if p.memory == nil {
			continue
		}
		var err error
		if p.record, err = p.memory.Read(); err != nil {
			p.record = nil
			if !errors.Is(err, flight.ErrEmpty) {
				a.console.logf("record of rank %d: %v", p.Rank, err)
			}
		}
	}
}

// writeRecords writes the records that were taken, of those workers that did
// not write them themselves, and adds how each worker ended. It returns the
// folder, "" if no worker recorded anything, and what the records mean.
func (a *agent) writeRecords() (dir string, meaning *analyze.Report) {
	if !a.records.DumpOnFailure {
		return "", nil
	}
	dir = a.dumpDir()
	var dumps []*flight.Dump
	written := 0
	ended, echoes := a.endedByThemselves(), a.failure.causedByOthers()
	for _, p := range a.procs {
		d, err := flight.ReadFile(filepath.Join(dir, flight.File(p.Rank)))
		if err != nil || d.PID != p.PID {
			d = p.record
		}
		if d == nil {
			continue
		}
		if d.Fate == "" && p.record != nil { // it was suspended, and is no more
			d.Fate, d.FateAt = p.record.Fate, p.record.FateAt
		}
		if ended[p] {
			d.Fate, d.FateAt = p.end.Status.String(), p.end.At
		}
		if e := echoes[p.Rank]; d.Reason == "" && e != nil { // its process was gone before it could record it
			d.Reason, d.ReasonAt = e.Message, e.Time
		}
		dumps = append(dumps, d)
		if _, err := d.Write(dir); err != nil {
			a.console.logf("record of rank %d: %v", p.Rank, err)
			continue
		}
		written++
	}
	if len(dumps) == 0 {
		return "", nil
	}
	if written == 0 {
		dir = ""
	}
	return dir, analyze.Analyze(dumps)
}

// endedByThemselves is the workers that did not end because they were told to: those
// that ended before, and the root cause, which may have been slow to end.
func (a *agent) endedByThemselves() map[*process]bool {
	ended := map[*process]bool{}
	root := &a.failure.Root
	for _, e := range a.core.exits {
		p := a.procs[e.local]
		ended[p] = !e.late || p.dying || p.Rank == root.Rank && !root.Stopped
	}
	return ended
}
