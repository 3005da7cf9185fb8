//go:build cgo && linux

package profile_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/timeline"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

// Two ranks on fake GPUs train, and their traces say what the GPUs ran, on the clock of the spans.
func TestTraceOfGPUs(t *testing.T) {
	const steps = 3
	dir := t.TempDir()
	paths := []string{filepath.Join(dir, "0.json"), filepath.Join(dir, "1.json")}
	start := time.Now()
	commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
		model, err := ddp.New(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)), pg, &ddp.Options{BucketCapMB: 0.001})
		if err != nil {
			return err
		}
		opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1})
		if err != nil {
			return err
		}
		x := autograd.FromSlice(pg.Device(), make([]float32, 32), 4, 8)
		if err := pg.Device().Compute().Sync(t.Context()); err != nil { // so that no work has begun, whose call the trace lacks
			return err
		}
		trace := profile.Of(pg.Device())
		trace.Start()
		for range steps {
			if err := nn.MSELoss(model.Forward(x), x).Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			opt.ZeroGrad()
		}
		if err := pg.Device().Compute().Sync(t.Context()); err != nil {
			return err
		}
		trace.Stop()
		return trace.WriteFile(paths[pg.Rank()], pg.Rank())
	})
	if t.Failed() {
		return
	}
	report, err := timeline.Analyze(paths...)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	for _, r := range report.Ranks {
		// Each step has two products forward, three backward, and two reductions at least.
		if r.FromSpans || r.Activities < steps*7 || r.Compute <= 0 || r.Communication <= 0 || r.Exposed > r.Communication ||
			r.Total > took || r.Idle >= r.Total || len(r.Gaps) != 5 {
			t.Errorf("rank %d, within %v: %+v", r.Rank, took, r)
		}
		inStep := 0
		for _, g := range r.Gaps {
			if g.During != "" {
				inStep++
			}
			if g.Cause == "" || g.Before == "" || g.After == "" {
				t.Errorf("rank %d has the gap %+v", r.Rank, g)
			}
		}
		if inStep == 0 {
			t.Errorf("rank %d: no gap lies in a pass or a step, so the kernels are not on the spans' clock: %+v", r.Rank, r.Gaps)
		}
	}
	if text := report.String(); strings.Count(text, "\n  rank ") != 5 {
		t.Errorf("the report does not have the 5 longest gaps:\n%s", text)
	}
}

// If CUPTI cannot be used, one line says so, and the trace has spans alone.
func TestTraceWithoutCUPTI(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	dev := commtest.FakeGPUs(t, 1, "cupti 39")[0] // another profiler uses it
	trace := profile.Of(dev)
	for range 2 {
		trace.Start()
		trace.Add(profile.Span{Track: profile.Compute, Name: "forward", Begin: profile.At(time.Now()), End: profile.At(time.Now())})
		trace.Stop()
	}
	var file bytes.Buffer
	if err := trace.WriteChrome(&file, 0); err != nil || strings.Count(file.String(), `"ph":"X"`) != 2 {
		t.Errorf("the trace is %s, %v", file.String(), err)
	}
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "MULTIPLE_SUBSCRIBERS") {
		t.Errorf("the log is %q, want one line with the cause", log.String())
	}
}
