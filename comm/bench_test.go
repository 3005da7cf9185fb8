package comm

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/jobenv"
)

// BenchmarkWatched measures how long the watchdog and the flight recorder take for one call,
// including their common reading of the clock. It does not include the backend. The measured
// code must allocate nothing.
func BenchmarkWatched(b *testing.B) {
	j := joiner{Options: (&Options{Log: slog.New(slog.DiscardHandler)}).orDefaults(), world: World{Size: 1}}
	if err := j.readSettings(); err != nil {
		b.Fatal(err)
	}
	j.env.Flight.DumpOnFailure = false
	recorder, err := flight.New(nil, j.world.identity(), jobenv.DefaultEntries)
	if err != nil {
		b.Fatal(err)
	}
	server := coordinator.NewServer(1, coordinator.Options{})
	defer server.Close()
	client, err := server.Local(0, coordinator.ClientOptions{Size: 1})
	if err != nil {
		b.Fatal(err)
	}
	d := newWatchdogLoop(b.Context(), &j, recorder)
	defer d.stop()
	g := &group{name: "default", size: 1, watchdog: d, control: client.Root()}
	d.add(g)
	work := &Work{call: backend.Call{Kind: backend.Barrier, Timeout: time.Minute}, group: g}
	seen := (*observed)(work)
	at := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		work.call.Seq++
		now := d.now()
		work.created, work.deadline = now, now+work.call.Timeout
		work.entry = g.record.Begin(&work.call, d.epoch+int64(now))
		d.started(work)
		seen.Running(at)
		seen.Ended(at, nil)
	}
	if err := context.Cause(d.ctx); err != nil {
		b.Fatal(err)
	}
}
