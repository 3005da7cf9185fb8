package comm

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/goddp/goddp/comm/flight"
	"github.com/goddp/goddp/comm/flight/analyze"
	"github.com/goddp/goddp/comm/watchdog"
)

// latest is how many of its latest calls a rank answers with.
const latest = 64

// identity is whose flight record this process's is.
func (w World) identity() flight.Identity {
	return flight.Identity{
		Rank: w.Rank, WorldSize: w.Size, LocalRank: w.LocalRank, Generation: w.Generation,
		Job: os.Getenv("GODDP_JOB_ID"), Run: os.Getenv("TORCHELASTIC_RUN_ID"),
	}
}

// record writes this rank's flight record to a file, with the reason for it and
// the ranks of the job that were waited for.
func (d *watch) record(reason string, awaited ...int) error {
	d.recorder.Reason(reason, awaited...)
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

// publish gives this rank's latest calls to those that compare all ranks'.
func (d *watch) publish(dump *flight.Dump) {
	if dump == nil {
		return
	}
	dump.Records = dump.Records[max(0, len(dump.Records)-latest):]
	ctx, cancel := context.WithTimeout(d.ctx, announceTime)
	defer cancel()
	value, err := json.Marshal(dump)
	if err == nil {
		err = d.kv.Set(ctx, fmt.Sprint(keyRecord, d.world.Rank), value)
	}
	if err != nil {
		d.logf(slog.LevelDebug, "[Rank %d] telling the other ranks what this one does: %v", d.world.Rank, err)
	}
}

// compare tells loop what the others say of an overdue call, whose group it is and
// which waits for ranks of it: their records through the store, if that answers, and
// whom they wait for themselves.
func (d *watch) compare(g *group, waits []int, store bool) {
	e := event{kind: watchdog.Gathered, traced: waits}
	if store {
		e.dumps = d.gather()
	}
	if len(e.dumps) > 0 {
		e.report = analyze.Analyze(e.dumps)
	}
	d.tell(e)
}

// gather returns this rank's record and those of the others that answer. It
// gives its own to those that gather at the same time.
func (d *watch) gather() []*flight.Dump {
	own := d.recorder.Dump()
	if own == nil || d.world.Size == 1 {
		return nil
	}
	d.publish(own)
	ctx, cancel := context.WithTimeout(d.ctx, gatherTime)
	defer cancel()
	dumps := make([]*flight.Dump, d.world.Size)
	var wg sync.WaitGroup
	for r := range dumps {
		if r == d.world.Rank {
			dumps[r] = own
			continue
		}
		wg.Go(func() {
			value, err := d.kv.Get(ctx, fmt.Sprint(keyRecord, r))
			if err != nil {
				return // it is what the diagnosis is about
			}
			dump, err := decodeRecord(value, r, d.world.Size)
			if err != nil {
				d.logf(slog.LevelDebug, "[Rank %d] what rank %d says: %v", d.world.Rank, r, err)
				return
			}
			dumps[r] = dump
		})
	}
	wg.Wait()
	return slices.DeleteFunc(dumps, func(d *flight.Dump) bool { return d == nil })
}

// maxRecord bounds the record that a rank answers with, in bytes: its latest calls, and
// all its groups and call sites.
const maxRecord = 1 << 20

// decodeRecord reads what a rank answered with.
func decodeRecord(value []byte, rank, size int) (*flight.Dump, error) {
	if len(value) > maxRecord {
		return nil, fmt.Errorf("a record of %d bytes, at most %d", len(value), maxRecord)
	}
	dump, err := flight.Decode(value)
	if err != nil {
		return nil, err
	}
	if dump.Rank != rank || dump.WorldSize != size {
		return nil, fmt.Errorf("a record of rank %d of %d, want rank %d of %d", dump.Rank, dump.WorldSize, rank, size)
	}
	return dump, nil
}

// absent is the ranks of a collective's group that have not called it, as far
// as the dumps tell: those that say so, and those that say nothing.
func absent(w *Work, dumps []*flight.Dump) []int {
	if len(dumps) == 0 || w.call.Seq == 0 {
		return nil
	}
	called := make([]bool, w.group.size)
	for _, d := range dumps {
		for _, m := range d.Groups {
			if m.Name == w.group.name && m.Rank >= 0 && m.Rank < len(called) && m.Enqueued >= w.call.Seq {
				called[m.Rank] = true
			}
		}
	}
	var ranks []int
	for r, c := range called {
		if !c {
			ranks = append(ranks, r)
		}
	}
	return ranks
}
