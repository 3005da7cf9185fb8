package launcher

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/flight/analyze"
	"github.com/goddp/goddp/internal/jobenv"
)

// lookup returns a function that finds variables in env. If a name occurs more than once,
// the last value counts.
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

// firstExtraFD is the descriptor of the first extra file that a process inherits.
const firstExtraFD = 3

// giveRecorder makes the memory for a worker's flight recorder. A worker may ignore it. A
// worker that gets none records into its own memory.
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

// recorderEnv returns the variables that tell a worker about its flight recorder.
func (s *spawner) recorderEnv(p *process) []string {
	fd := "" // overrides the value inherited from an outer golaunch, if this one is nested
	if p.memory != nil {
		fd = fmt.Sprint(firstExtraFD)
	}
	env := []string{jobenv.FlightFDVar + "=" + fd}
	if s.chosen {
		return append(env, jobenv.FlightDirVar+"="+s.dumps)
	}
	return append(env, jobenv.Chosen(jobenv.FlightDirVar, s.dumps)...)
}

func (p *process) closeRecord() {
	if p.memory != nil {
		p.memory.Close()
		p.memory = nil
	}
}

// flightFolder is the name of the folder for flight records in an attempt's folder.
const flightFolder = "flight"

// dumpDir returns the folder into which the workers and this process write the attempt's
// flight records: the folder that the user chose, or else one beside the workers' logs.
func (a *agent) dumpDir() string {
	if a.records.Dir != "" {
		dir := flight.Folder(a.records.Dir, a.round.Credentials.JobID)
		if abs, err := filepath.Abs(dir); err == nil {
			return abs
		}
		return dir
	}
	return filepath.Join(a.attemptDir(), flightFolder)
}

// takeRecords reads the flight records of all workers, dead or alive. It is called when
// the attempt fails, on this node or on another, before the agent stops the other workers. A
// second call does nothing.
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
		if p.record, err = p.memory.Read(p.PID); err != nil {
			p.record = nil
			if !errors.Is(err, flight.ErrEmpty) {
				a.console.logf("record of rank %d: %v", p.Rank, err)
			}
			continue
		}
		// In a job of one node the analysis says that the record was replaced.
		if a.round.Nodes > 1 && p.record.Ending == flight.Replaced {
			a.console.logf("rank %d (pid %d) %s", p.Rank, p.record.PID, p.record.Fate)
		}
	}
}

// writeRecords writes the records that takeRecords has read, and adds how each worker
// ended. It prefers the record that a worker wrote itself. It returns the folder, or "" if
// no record was written, and the analysis of the records.
func (a *agent) writeRecords() (dir string, meaning *analyze.Report) {
	if !a.records.DumpOnFailure {
		return "", nil
	}
	dir = a.dumpDir()
	var dumps []*flight.Dump
	written := 0
	// ended holds the workers that did not end because golaunch stopped them: the workers that ended before the
	// stop, and the root cause, which may have exited slowly.
	ended, root := map[*process]bool{}, a.rootCause()
	for _, e := range a.core.exits {
		p := a.procs[e.local]
		ended[p] = !e.late || p.dying || root != nil && p.PID == root.PID && !root.WasExiting
	}
	for _, p := range a.procs {
		if _, hasEnded := ended[p]; p.end != nil && !hasEnded {
			continue // lost before, and the others went on
		}
		d, err := flight.ReadFile(filepath.Join(dir, flight.File(p.Rank)))
		if err != nil || d.PID != p.PID {
			d = p.record
		}
		if d == nil {
			continue
		}
		if d.Ending == "" && p.record != nil { // the worker was suspended when its record was taken
			d.Ending, d.Fate = p.record.Ending, p.record.Fate
		}
		if ended[p] {
			d.Ending, d.Fate, d.FateAt = p.end.Status.Ending(), p.end.Status.String(), p.end.Exited
		}
		for _, f := range a.failures {
			if cause := f.CausedBy(); f.Rank == p.Rank && d.Reason == "" && cause != nil && *cause < a.round.WorldSize {
				// The worker ended before it could record its reason.
				d.Reason, d.ReasonAt, d.CausedBy = f.ErrorFile.Message, f.ErrorFile.Time, cause
			}
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
	if a.round.Nodes > 1 { // the analysis would lack the other nodes' records, which are on those nodes
		return dir, nil
	}
	return dir, analyze.Analyze(dumps)
}
