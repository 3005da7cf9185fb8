package comm

import (
	"log/slog"

	"github.com/goddp/goddp/internal/flight"
)

// identity returns the description of this process that its flight record contains.
func (w World) identity() flight.Identity {
	return flight.Identity{
		Rank: w.Rank, WorldSize: w.Size, LocalRank: w.LocalRank, Generation: w.Generation,
	}
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
