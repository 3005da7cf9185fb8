//go:build cgo && linux

package profile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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

const steps = 20

// train records steps of a model on fake GPUs, which are captured or not. It returns the ranks' traces.
func train(t *testing.T, captured bool) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	paths = []string{filepath.Join(dir, "0.json"), filepath.Join(dir, "1.json")}
	commtest.OnDevices(t, commtest.FakeGPUs(t, len(paths)), nil, func(pg *comm.ProcessGroup) error {
		model, err := ddp.New(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)), pg, &ddp.Options{BucketCapMB: 0.001})
		if err != nil {
			return err
		}
		opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1})
		if err != nil {
			return err
		}
		runs := 0
		step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
			runs++
			loss := nn.MSELoss(model.Forward(in[0]), in[0])
			if err := loss.Backward(); err != nil {
				return nil, err
			}
			err := opt.Step()
			opt.ZeroGrad()
			return loss, err
		}
		if captured {
			step = autograd.Capture(pg.Device(), step, &autograd.CaptureOptions{Required: true})
		}
		x := autograd.FromSlice(pg.Device(), make([]float32, 32), 4, 8)
		if err := pg.Device().Compute().Sync(t.Context()); err != nil { // so that no work has begun, whose call the trace lacks
			return err
		}
		trace := profile.Of(pg.Device())
		trace.Start()
		for range steps {
			if _, err := step(x); err != nil {
				return err
			}
		}
		if err := pg.Device().Compute().Sync(t.Context()); err != nil {
			return err
		}
		trace.Stop()
		if captured && runs > steps/2 {
			return fmt.Errorf("the step function ran %d times in %d steps", runs, steps)
		}
		return trace.WriteFile(paths[pg.Rank()], pg.Rank())
	})
	if t.Failed() {
		t.FailNow()
	}
	return paths
}

// Two ranks on fake GPUs train, and their traces say what the GPUs ran.
func TestTraceOfGPUs(t *testing.T) {
	start := time.Now()
	report, err := timeline.Analyze(train(t, false)...)
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
		for _, g := range r.Gaps {
			if g.Cause == "" || g.Before == "" || g.After == "" {
				t.Errorf("rank %d has the gap %+v", r.Rank, g)
			}
		}
	}
	if text := report.String(); strings.Count(text, " after its first activity: ") != 5 {
		t.Errorf("the report does not have the 5 longest gaps:\n%s", text)
	}
}

// Steps are captured while a trace is recorded. Each is a span, and the trace has the work of each node, on the
// clock of the spans.
func TestTraceOfCapturedSteps(t *testing.T) {
	for _, path := range train(t, true) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var trace struct {
			TraceEvents []struct {
				Name, Cat string
				TS, Dur   float64
				Args      struct{ Graph int }
			}
		}
		if err := json.Unmarshal(data, &trace); err != nil {
			t.Fatal(err)
		}
		type span struct{ begin, end float64 }
		const slack = 50_000 // microseconds; a busy machine cannot tell a device's clock better
		var replays []span
		products, reductions, outside := 0, 0, 0
		for _, e := range trace.TraceEvents {
			if e.Name == "captured step" {
				replays = append(replays, span{e.TS, e.TS + e.Dur})
			}
		}
		for _, e := range trace.TraceEvents {
			if e.Args.Graph == 0 {
				continue
			}
			switch e.Name {
			case "fake_gemm":
				products++
			case "ncclDevKernel_Any":
				reductions++
			}
			if !slices.ContainsFunc(replays, func(s span) bool { return s.begin-slack < e.TS && e.TS+e.Dur < s.end+slack }) {
				outside++
			}
		}
		if n := len(replays); n < steps/2 || products != 5*n || reductions < 2*n || outside > 0 {
			t.Errorf("%s: %d captured steps with %d products and %d reductions, %d kernels outside; want 5 products and 2 reductions in each", path, n, products, reductions, outside)
		}
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
