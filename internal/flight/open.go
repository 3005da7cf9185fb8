package flight

import (
	"cmp"
	"log/slog"
	"runtime"

	"github.com/goddp/goddp/internal/jobenv"
)

// Open starts the recorder of a process in the memory that the launcher allocated. If there is
// none, it allocates memory, and a rank that is killed leaves no record. Open returns nil if the
// settings say to record nothing.
func Open(id Identity, s jobenv.Flight, log *slog.Logger) *Recorder {
	if s.Entries == 0 {
		return nil
	}
	id.Job, id.Run = cmp.Or(id.Job, s.JobID), cmp.Or(id.Run, s.RunID)
	mem, err := Inherited()
	if err == nil && mem != nil {
		var r *Recorder
		if r, err = New(mem, id, s.Entries); err == nil {
			runtime.AddCleanup(r, unmap, mem)
			return r
		}
		unmap(mem)
	}
	if err != nil {
		log.Warn("the launcher's memory for the flight recorder cannot be used: a killed rank will leave no record", "err", err)
	}
	r, err := New(nil, id, s.Entries)
	if err != nil {
		log.Warn("nothing will be recorded", "err", err)
	}
	return r
}
