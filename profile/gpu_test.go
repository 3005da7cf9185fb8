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
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/timeline"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

const steps = 12

// train records captured or uncaptured steps of a model on GPUs. It returns the ranks' traces.
func train(t *testing.T, devices []device.Device, captured bool) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	for rank := range devices {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("%d.json", rank)))
	}
	commtest.OnDevices(t, devices, nil, func(pg *comm.ProcessGroup) error {
		model, err := ddp.New(nn.Sequential(nn.Linear(8, 64, nil), nn.Tanh(), nn.Linear(64, 8, nil)), pg, &ddp.Options{BucketCapMB: 0.001})
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
			loss := nn.MSELoss(model.Forward(in[0]), in[0], nil)
			if err := loss.Backward(nil); err != nil {
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
		if err := pg.Device().Compute().Sync(t.Context()); err != nil { // otherwise the trace would have work without its call
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

// Two ranks train on fake GPUs, and their traces contain the GPUs' activity.
func TestEmulatedTraceOfGPUs(t *testing.T) {
	start := time.Now()
	job, err := timeline.Read(train(t, commtest.FakeGPUs(t, 2), false)...)
	if err != nil {
		t.Fatal(err)
	}
	report, took := job.Report(), time.Since(start)
	activities := 0.0
	for _, k := range report.Kernels {
		activities += k.Count
	}
	if activities < 7 { // each step has two products forward, three backward, and two reductions at least
		t.Errorf("%.1f activities in a step, want 7 at least", activities)
	}
	for _, r := range report.Ranks {
		if r.FromSpans || r.Compute <= 0 || r.Communication <= 0 || r.Exposed > r.Communication ||
			r.Total > took || r.Idle >= r.Total || len(r.Gaps) != 5 {
			t.Errorf("rank %d, within %v: %+v", r.Rank, took, r)
		}
		for _, g := range r.Gaps {
			if g.Cause == "" || g.Before == "" || g.After == "" {
				t.Errorf("rank %d has the gap %+v", r.Rank, g)
			}
		}
	}
	if text := report.Text(false); strings.Count(text, " after its first step began: ") != 5 {
		t.Errorf("the report does not have the 5 longest gaps:\n%s", text)
	}
}

// Steps are captured while a trace is recorded. Each is a span, and the trace contains each node's work, on the
// same clock.
func TestEmulatedTraceOfCapturedSteps(t *testing.T) {
	for _, path := range train(t, commtest.FakeGPUs(t, 2), true) {
		const slack = 50 * time.Millisecond // on a busy machine the times of a fake device are imprecise
		inEach := nodes(t, path, slack)
		if inEach["fake_gemm"] != 5 || inEach["ncclDevKernel_Any"] < 2 {
			t.Errorf("%s: a captured step has the nodes %v, want 5 products and 2 reductions at least", path, inEach)
		}
	}
}

func TestGPUTraceOfCapturedSteps(t *testing.T) {
	for _, path := range train(t, commtest.OpenGPUs(t, 1, 1), true) {
		inEach := nodes(t, path, 100*time.Microsecond)
		if inEach["sgd_float32"] == 0 {
			t.Errorf("a captured step has the nodes %v, want an update", inEach)
		}
		t.Log(inEach)
	}
}

// nodes returns the number of nodes by name in the captured steps of a trace. It checks that all steps have the
// same, and that each node ran during a captured step, within slack.
func nodes(t *testing.T, path string, slack time.Duration) map[string]int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Name    string
			TS, Dur float64 // microseconds
			Args    struct{ Graph int }
		}
	}
	if err := json.Unmarshal(data, &trace); err != nil {
		t.Fatal(err)
	}
	type span struct{ begin, end float64 }
	var replays []span
	for _, e := range trace.TraceEvents {
		if e.Name == "captured step" {
			replays = append(replays, span{e.TS, e.TS + e.Dur})
		}
	}
	if len(replays) < steps/2 {
		t.Fatalf("%s has %d captured steps, want half of %d at least", path, len(replays), steps)
	}
	count, most := map[string]int{}, float64(slack.Microseconds())
	for _, e := range trace.TraceEvents {
		if e.Args.Graph == 0 {
			continue
		}
		count[e.Name]++
		if !slices.ContainsFunc(replays, func(s span) bool { return s.begin-most < e.TS && e.TS+e.Dur < s.end+most }) {
			t.Errorf("%s: a node, %s, ran at %f for %f µs, within no captured step of %v", path, e.Name, e.TS, e.Dur, replays)
		}
	}
	for name, n := range count {
		if n%len(replays) != 0 {
			t.Errorf("%s: %s ran %d times in %d captured steps", path, name, n, len(replays))
		}
		count[name] = n / len(replays)
	}
	return count
}

// Closing a GPU while its recorder is on ends CUPTI's recording. The trace contains its activity until then.
func TestEmulatedClosedGPUIsNotRecorded(t *testing.T) {
	devs := commtest.FakeGPUs(t, 2)
	trace := profile.Of(devs[0])
	trace.Start()
	autograd.Zeros(devs[0], device.Float32, 4)
	if err := devs[0].Close(); err != nil {
		t.Fatal(err)
	}
	if trace.On() {
		t.Error("the recorder of a closed GPU is on")
	}
	var file bytes.Buffer
	if err := trace.WriteChrome(&file, 0); err != nil || !strings.Contains(file.String(), "fill") {
		t.Errorf("the trace is %s, %v; want the kernel", file.String(), err)
	}
}

// If CUPTI cannot be used, one line says so, and the trace contains only spans.
func TestEmulatedTraceWithoutCUPTI(t *testing.T) {
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
