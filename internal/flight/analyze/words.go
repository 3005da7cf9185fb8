package analyze

import (
	"fmt"
	"time"

	"github.com/goddp/goddp/internal/flight"
)

// call describes a call, its group and its call site.
func call(d *flight.Dump, r flight.Record) string {
	s := fmt.Sprintf("%v in group %s", r, r.Group)
	if at := site(d, r); at != "" {
		s += ", called at " + at
	}
	return s
}

// site returns where the user's program made a call: the innermost frame that is not this
// library's or, if there is none, the innermost frame.
func site(d *flight.Dump, r flight.Record) string {
	frames := d.Frames(r)
	for _, f := range frames {
		if !f.FromLibrary() {
			return describe(f)
		}
	}
	if len(frames) > 0 {
		return describe(frames[0])
	}
	return ""
}

func describe(f flight.Frame) string { return fmt.Sprintf("%s (%s)", f.Site(), f.Func) }

// progress describes the state of a call at the time when the record was taken.
func progress(d *flight.Dump, r flight.Record) string {
	ago := func(t time.Time) string { return d.Taken.Sub(t).Round(time.Millisecond).String() }
	switch {
	case r.InFlight() && r.Running.IsZero():
		return "queued for " + ago(r.Queued)
	case r.InFlight():
		return "running for " + ago(r.Running)
	default:
		return fmt.Sprintf("%v %s before its record was taken", r.State, ago(r.Ended))
	}
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000Z") }

// lastCall describes the latest call of a rank.
func lastCall(d *flight.Dump) string {
	if len(d.Records) == 0 {
		return fmt.Sprintf("rank %d made no call", d.Rank)
	}
	r := d.Records[len(d.Records)-1]
	return fmt.Sprintf("last call of rank %d: %s, %s", d.Rank, call(d, r), progress(d, r))
}
