package comm

import (
	"fmt"
	"log/slog"

	"github.com/goddp/goddp/internal/flight"
)

// identity returns the description of this process that its flight record contains.
func (w World) identity() flight.Identity {
	return flight.Identity{
		Rank: w.Rank, WorldSize: w.Size, LocalRank: w.LocalRank, Generation: w.Generation,
	}
}

// openRecorder opens the flight recorder of this rank, or returns nil if nothing is recorded.
func (j *joiner) openRecorder() *flight.Recorder {
	f := j.env.Flight
	if j.local == nil || f.Entries == 0 {
		return flight.Open(j.world.identity(), f, j.Log)
	}
	id := j.world.identity()
	id.Job, id.Run = f.JobID, f.RunID
	r, err := flight.New(nil, id, f.Entries)
	if err != nil {
		panic(fmt.Errorf("comm: opening a flight recorder of %d entries: %w", f.Entries, err)) // cannot happen: it uses the heap
	}
	return r
}

// record writes this rank's flight record to a file. The record contains the reason for writing it,
// the rank whose failure caused it, if another rank's did, and `awaited`, the ranks of the job that
// a call waited for.
func (d *watchdogLoop) record(reason string, culprit *int, awaited ...int) error {
	d.recorder.Reason(reason, culprit, awaited...)
	dump := d.recorder.Dump()
	if dump == nil || d.dumps == nil {
		return nil
	}
	dir, err := d.dumps()
	if err != nil {
		return err
	}
	path, err := dump.Write(dir)
	if err != nil {
		return err
	}
	d.logf(slog.LevelError, "[Rank %d] the flight record is in %s; goddp analyze %s compares the ranks'", d.world.Rank, path, dir)
	return nil
}
